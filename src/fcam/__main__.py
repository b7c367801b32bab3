"""`python -m fcam`, which is what `accelerate launch -m fcam` runs."""

import sys

from fcam.cli import main

sys.exit(main())
