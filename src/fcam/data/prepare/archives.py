"""Where each archive comes from, how it is unpacked, and by what it can be checked.

A checksum stands here only where somebody has published it, and `source` says who.
"""

from __future__ import annotations

from typing import NamedTuple


class Archive(NamedTuple):
    """One file to fetch."""

    name: str
    url: str
    unpack: str
    """What to do with it; ROOT is the folder that `fcam data prepare` is given."""
    checksum: str = ""
    size: str = ""
    source: str = ""
    """Where the checksum is published."""
    note: str = ""


METADATA = Archive(
    "metadata of wsolevaluation",
    "https://github.com/clovaai/wsolevaluation (folder metadata/)",
    "git clone, then give --metadata wsolevaluation/metadata",
    note="the only source of the val split of CUB and ILSVRC; boxes of val: CC BY 2.0, NAVER Corp.",
)

ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "cub": (
        Archive(
            "CUB_200_2011.tgz",
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            "tar xf CUB_200_2011.tgz; ROOT is CUB_200_2011",
            "MD5 97eceeb196236b17998738112f37df78, "
            "SHA-256 0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
            "1,150,585,339 bytes",
            "MD5: many public loaders, the CaltechDATA copy; the other and the size: TensorFlow Datasets, caltech_birds2011",
        ),
        Archive(
            "CUBV2.tar",
            "https://drive.google.com/open?id=1U6cwKHS65wayT9FFvoLIA8cn1k0Ot2M1",
            "tar xf CUBV2.tar -C ROOT/images (its class folders join those of the birds), or ROOT/CUBV2",
            note="the 1,000 images of val",
        ),
        METADATA,
    ),
    "openimages": (
        Archive(
            "OpenImages_images.zip",
            "https://drive.google.com/open?id=1oOb4WQ-lb8SYppHEg3lWnpHk1X8WVO4e",
            "unzip OpenImages_images.zip -d ROOT",
            note="the OpenImages30k subset of the benchmark, not the whole of OpenImages",
        ),
        Archive(
            "OpenImages_annotations.zip",
            "https://drive.google.com/open?id=1eu1YvcZlsEalhXTS_5Ni5tkImCliIPie",
            "unzip OpenImages_annotations.zip -d ROOT (masks beside the images)",
            note="CC BY 4.0, Google LLC",
        ),
        METADATA._replace(note="not needed: the folders of the two archives say everything"),
    ),
    "ilsvrc": (
        Archive(
            "ILSVRC2012_img_train.tar",
            "https://image-net.org/data/ILSVRC/2012/ILSVRC2012_img_train.tar (account needed)",
            "unpack to ROOT/train/<wnid>/*.JPEG, one archive per class inside",
            "MD5 1d675b47d978889d74fa0da5fadfb00e",
            source="torchvision.datasets.ImageNet",
        ),
        Archive(
            "ILSVRC2012_img_val.tar",
            "https://image-net.org/data/ILSVRC/2012/ILSVRC2012_img_val.tar (account needed)",
            "tar xf ILSVRC2012_img_val.tar -C ROOT/val (the benchmark's test split)",
            "MD5 29b22e2961454d5413ddabcf34fc5622",
            source="torchvision.datasets.ImageNet",
        ),
        Archive(
            "ILSVRC2012_bbox_val_v3.tgz",
            "https://image-net.org/data/ILSVRC/2012/ILSVRC2012_bbox_val_v3.tgz",
            "tar xf ILSVRC2012_bbox_val_v3.tgz -C ROOT/bbox_val",
            "MD5 f4cd18b5ea29fe6bbea62ec9c20d80f0",
            "2.2 MB",
            "the download page of ImageNet",
            "the XML files name the class, so that the development kit is not needed",
        ),
        Archive(
            "imagenet-object-localization-challenge (Kaggle)",
            "https://www.kaggle.com/c/imagenet-object-localization-challenge/data (account needed)",
            "unzip; ROOT is the folder that holds ILSVRC/ and LOC_synset_mapping.txt",
            note="instead of the three archives above: images, XML files and class names in one",
        ),
        Archive(
            "imagenetv2-threshold0.7.tar.gz",
            "https://huggingface.co/datasets/vaishaal/ImageNetV2/resolve/main/imagenetv2-threshold0.7.tar.gz",
            "unpack so that its class folders 0 to 999 lie in ROOT/val2",
            "SHA-256 32142bfe998f9cfa4141be691f6a80eeb1e27b24bd532a668eb08c26d98897a2",
            "1,249,906,176 bytes",
            "TensorFlow Datasets, imagenet_v2",
            "the images of val. Their names changed after the benchmark's boxes were drawn: the lists say 0.jpeg to 9.jpeg, "
            "the archive of today has hashes; see clovaai/wsolevaluation issue 42 for ways to map them",
        ),
        METADATA,
    ),
}


def where(kind: str) -> str:
    """All archives of a data set as text."""
    lines = []
    for archive in ARCHIVES[kind]:
        checked = archive.checksum or "no checksum is published"
        lines += [archive.name, f"  from     {archive.url}", f"  unpack   {archive.unpack}"]
        lines.append(f"  check    {checked}{f' ({archive.source})' if archive.source else ''}")
        lines += [f"  size     {archive.size}"] if archive.size else []
        lines += [f"  note     {archive.note}"] if archive.note else []
        lines.append("")
    return "\n".join(lines).rstrip()
