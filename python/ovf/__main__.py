"""`python -m ovf` is the `ovf` command."""

from ovf.cli import main

if __name__ == "__main__":
    main()
