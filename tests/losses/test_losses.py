"""Loss terms against the reference's values and against plain autograd."""

from __future__ import annotations

import math

import pytest
import torch

from fcam import bilateral
from fcam.config import LossConfig
from fcam.losses import (
    CRFLoss,
    PixelAlignmentLoss,
    barrier_t,
    extended_log_barrier,
    partial_cross_entropy,
    pixel_entropy,
    size_constraint,
)
from fcam.losses.total import is_on
from fcam.seeds import IGNORE


@pytest.mark.parametrize(
    ("f", "t", "value"),
    [(-1, 1, 0.0), (-2, 1, -0.6931), (-25088, 1, -10.1301), (-0.5, 1, 0.5), (0, 1, 1.0), (-0.04, 5, 0.64378)],
)
def test_barrier_values_of_the_reference(f, t, value):
    assert extended_log_barrier(torch.tensor(float(f)), t).item() == pytest.approx(value, abs=1e-4)


def test_barrier_gradient_is_finite_everywhere_and_continuous_at_the_switch():
    f = torch.tensor([-1e9, -0.04 - 1e-6, -0.04 + 1e-6, 0.0, 1e6], requires_grad=True)
    extended_log_barrier(f, 5.0).sum().backward()
    assert f.grad is not None
    assert torch.isfinite(f.grad).all()
    assert f.grad[1].item() == pytest.approx(f.grad[2].item(), rel=1e-3)


def test_barrier_schedule_of_the_reference():
    assert barrier_t(1) == 1.0
    assert barrier_t(51) == pytest.approx(1.64463, abs=1e-5)
    assert barrier_t(10_000) == 10.0


@pytest.mark.parametrize(("share", "value"), [(0.5, -1.0130), (0.99, -0.8516)])
def test_size_values_of_the_reference(share, value):
    maps = torch.tensor([1 - share, share]).view(1, 2, 1, 1).expand(3, 2, 224, 224)
    assert 0.1 * size_constraint(maps, 1.0).item() == pytest.approx(value, abs=1e-4)


def test_size_of_an_empty_background_takes_the_linear_branch():
    maps = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1).expand(1, 2, 224, 224)
    assert 0.1 * size_constraint(maps, 1.0).item() == pytest.approx(-0.4912, abs=1e-4)


def test_partial_cross_entropy_is_the_mean_over_labelled_pixels_of_the_batch():
    torch.manual_seed(0)
    logits = torch.randn(2, 2, 4, 5)
    labels = torch.full((2, 4, 5), IGNORE)
    labels[0, 1, 2], labels[0, 3, 3], labels[1, 0, 0] = 1, 0, 1
    log_maps = logits.log_softmax(1)
    expected = -(log_maps[0, 1, 1, 2] + log_maps[0, 0, 3, 3] + log_maps[1, 1, 0, 0]) / 3
    assert partial_cross_entropy(logits, labels).item() == pytest.approx(expected.item(), rel=1e-6)


def test_batch_without_labels_costs_nothing_and_has_a_zero_gradient():
    logits = torch.randn(2, 2, 4, 4, requires_grad=True)
    loss = partial_cross_entropy(logits, torch.full((2, 4, 4), IGNORE))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def brute_affinity(image: torch.Tensor, sigma_rgb: float, sigma_xy: float) -> torch.Tensor:
    """W of one image, written out, float64."""
    _, h, w = image.shape
    rows, cols = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    place = torch.stack([rows, cols]).flatten(1).T.double() / sigma_xy
    colour = image.flatten(1).T.double() * 255 / sigma_rgb
    return torch.exp(-0.5 * torch.cdist(torch.cat([place, colour], 1), torch.cat([place, colour], 1)) ** 2)


def test_crf_value_and_gradient_equal_the_written_out_sum():
    torch.manual_seed(0)
    images = torch.rand(2, 3, 9, 12) * 0.3
    logits = torch.randn(2, 2, 9, 12, requires_grad=True)
    maps = logits.softmax(1)
    loss = CRFLoss(sigma_rgb=40.0, sigma_xy=20.0)(maps, images)
    (ours,) = torch.autograd.grad(loss, logits, retain_graph=True)
    exact = torch.zeros((), dtype=torch.float64)
    for image, pair in zip(images, maps, strict=True):
        affinity = brute_affinity(image, 40.0, 20.0)
        flat = pair.flatten(1).double()
        exact = exact + torch.einsum("tp,pq,tq->", flat, affinity, 1 - flat) / 2
    (theirs,) = torch.autograd.grad(exact, logits)
    assert loss.item() == pytest.approx(exact.item(), rel=0.03)
    assert ((ours - theirs).norm() / theirs.norm()).item() < 0.05


def test_both_forms_of_the_crf_have_the_same_gradient_behind_a_softmax():
    torch.manual_seed(1)
    images, logits = torch.rand(1, 3, 32, 32), torch.randn(1, 2, 32, 32, requires_grad=True)
    gradients = []
    for form in ("published", "reference"):
        loss = CRFLoss(form=form)(logits.softmax(1), images)  # type: ignore[arg-type]
        gradients.append(torch.autograd.grad(loss, logits)[0])
        assert (loss.item() > 0) == (form == "published")
    assert torch.allclose(gradients[0], gradients[1], atol=1e-4 * gradients[0].abs().max().item())


def test_crf_prefers_a_cut_along_the_edge_of_the_object():
    image = torch.zeros(1, 3, 40, 40)
    image[:, :, :, 20:] = 1.0
    along, across = torch.zeros(1, 2, 40, 40), torch.zeros(1, 2, 40, 40)
    along[:, 1, :, 20:] = 1.0
    across[:, 1, 20:] = 1.0
    for maps in (along, across):
        maps[:, 0] = 1 - maps[:, 1]
    crf = CRFLoss()
    assert crf(along, image) < 0.05 * crf(across, image)


def test_lattice_reproduces_the_golden_loss(shared):
    import numpy as np

    golden = np.load(shared / "golden" / "crf.npz")
    images = torch.from_numpy(golden["s64_image_u8"]).permute(0, 3, 1, 2).float() / 255
    maps = torch.from_numpy(golden["s64_S"]).requires_grad_()
    crf = CRFLoss(15.0, 100.0, method="lattice", form="reference")
    loss = crf(maps, images)
    loss.backward()
    assert loss.item() == pytest.approx(float(golden["s64_ref_loss"]), rel=1e-5)
    reference = torch.from_numpy(golden["s64_ref_grad"])
    assert ((maps.grad - reference).norm() / reference.norm()).item() < 1e-5


def test_entropy_is_one_bit_for_an_undecided_map_and_survives_certainty():
    assert pixel_entropy(torch.full((1, 2, 3, 3), 0.5)).item() == pytest.approx(1.0)
    assert pixel_entropy(torch.tensor([1.0, 0.0]).view(1, 2, 1, 1)).item() == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("epoch", "window", "on"),
    [(1, (0, -1), True), (3, (4, -1), False), (4, (2, 4), True), (5, (2, 4), False)],
)
def test_epoch_windows(epoch, window, on):
    assert is_on(epoch, window) is on


def test_total_returns_exactly_the_terms_that_are_on():
    images, logits = torch.rand(2, 3, 32, 32), torch.randn(2, 2, 32, 32)
    labels = torch.randint(0, 2, (2, 32, 32))
    full = PixelAlignmentLoss(LossConfig(entropy=0.1))
    assert set(full(logits, labels, images, 1)) == {"partial_ce", "crf", "size", "entropy"}
    late = PixelAlignmentLoss(LossConfig(crf=0.0, size_epochs=(5, -1)))
    assert set(late(logits, labels, images, 1)) == {"partial_ce"}
    assert not PixelAlignmentLoss(LossConfig(alpha=0.0)).needs_seeds(1)


def test_total_weighs_its_terms():
    images, logits, labels = (
        torch.rand(1, 3, 32, 32),
        torch.randn(1, 2, 32, 32),
        torch.zeros(1, 32, 32, dtype=torch.long),
    )
    one = PixelAlignmentLoss(LossConfig(alpha=1.0, crf=1e-9, size=0.1))(logits, labels, images, 1)
    two = PixelAlignmentLoss(LossConfig(alpha=2.0, crf=2e-9, size=0.2))(logits, labels, images, 1)
    for name, value in one.items():
        assert two[name].item() == pytest.approx(2 * value.item(), rel=1e-5)


def test_a_compiled_loss_serves_every_epoch():
    graphs = []
    torch._dynamo.reset()  # graphs of other tests count towards the limit of one function
    loss = PixelAlignmentLoss(LossConfig(crf=0.0))
    compiled = torch.compile(loss, backend=lambda graph, inputs: (graphs.append(1), graph.forward)[1])
    torch.manual_seed(0)
    images, logits, labels = torch.rand(2, 3, 8, 8), torch.randn(2, 2, 8, 8), torch.randint(0, 2, (2, 8, 8))
    logits -= torch.tensor([40.0, 0.0]).view(
        1, 2, 1, 1
    )  # a background so small that the barrier's straight part is on
    for epoch in range(1, 6):
        for name, value in loss(logits, labels, images, epoch).items():
            torch.testing.assert_close(compiled(logits, labels, images, epoch)[name], value)
    assert len(graphs) <= 2  # of the first epoch, and of any


def test_filter_is_bounded_by_the_number_of_pixels():
    assert (
        bilateral.filter(torch.zeros(1, 3, 32, 32), torch.ones(1, 1, 32, 32)).max()
        <= math.prod((32, 32)) * 1.02
    )
