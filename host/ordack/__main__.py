"""`python -m ordack` is the command `ordack`."""

from ordack.cli import main

if __name__ == "__main__":
    main()
