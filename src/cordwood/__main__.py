"""`python -m cordwood` is the `cordwood` command."""

from cordwood.cli.main import main

if __name__ == "__main__":
    main()
