"""What a reader sees: panels, curves and one self-contained page."""
