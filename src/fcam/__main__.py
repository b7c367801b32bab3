"""`python -m fcam`, which is what `torchrun -m fcam` and `accelerate launch -m fcam` run."""

import sys

from fcam.cli import main

sys.exit(main())
