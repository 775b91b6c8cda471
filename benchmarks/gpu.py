"""`mirage-eg bench gpu` without an installation: python benchmarks/gpu.py gqa --batch 1 --out DIR"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mirage_eg.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "gpu"]
    main()
