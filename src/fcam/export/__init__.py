"""Export: the whole network as one file that runs without fcam."""

from fcam.export.formats import Exported, InputKind, export_onnx, export_torch

__all__ = ["Exported", "InputKind", "export_onnx", "export_torch"]
