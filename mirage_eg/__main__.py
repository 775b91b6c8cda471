"""`python -m mirage_eg` is the command `mirage-eg`."""

from mirage_eg.cli import main

if __name__ == "__main__":
    main()
