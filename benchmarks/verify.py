"""Verification at b = 1 and 16, all workloads: a table, and JSON lines in verify.jsonl. `--gpu` runs on CuPy.

The same as `mirage-eg bench verify --batch 1 --batch 16 --out verify.jsonl [--gpu]`.
"""

import sys

from mirage_eg.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "verify", "--batch", "1", "--batch", "16", "--out", "verify.jsonl"]
    main()
