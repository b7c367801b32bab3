"""Prediction: photos in, maps, masks and boxes of the photos' own sizes out."""

from fcam.predict.localizer import Localizer
from fcam.predict.output import load_predictions
from fcam.predict.prediction import Prediction

__all__ = ["Localizer", "Prediction", "load_predictions"]
