"""fcam: full-resolution class activation maps for any CNN image classifier."""

__version__ = "0.1.0"
