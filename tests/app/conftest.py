"""A saved model of random weights, and a photo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from fcam.registry import create_model


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(3)
    net = create_model("timm:test_resnet", 7, pretrained=False, classes=[f"class <{i}>" for i in range(7)])
    net.metadata["threshold"] = 0.4
    folder = tmp_path_factory.mktemp("app") / "model"
    net.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="package")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    noise = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((240, 180))
    ImageDraw.Draw(noise).ellipse((60, 40, 150, 130), fill=(240, 30, 20))
    path = tmp_path_factory.mktemp("photos") / "bird.png"
    noise.save(path)
    return path
