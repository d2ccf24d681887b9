"""`python -m peerinfer`, the same as the console script."""

from peerinfer.cli.main import main

if __name__ == "__main__":
    main()
