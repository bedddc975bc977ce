"""`python -m speccc` is the command `speccc`."""

from speccc.cli import main

if __name__ == "__main__":
    main()
