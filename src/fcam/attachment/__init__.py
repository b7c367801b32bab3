"""`fcam.attach`: a decoder on any trained network, whose feature pyramid and head are found by running it.

Names are taken from the modules: `fcam.model` reads `attached`, so nothing is imported here.
"""
