"""Labels for detection and segmentation projects, made from predictions: COCO, YOLO, Pascal VOC."""

from fcam.labels.export import LabelFormat, LabelOptions, check_folder, check_formats, export_labels

__all__ = ["LabelFormat", "LabelOptions", "check_folder", "check_formats", "export_labels"]
