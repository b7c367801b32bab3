"""`fcam benchmark`: how long maps, a training step and the CRF filter take on this machine.

`timing` measures, `runtime`, `train_step` and `crf` say what is measured, `published` holds the figures that stand
beside, `report` prints, `command` is the verb.
"""
