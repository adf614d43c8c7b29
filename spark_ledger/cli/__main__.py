"""``python -m spark_ledger.cli``: the same as the command ``ledger``."""

from spark_ledger.cli.app import main

if __name__ == "__main__":
    main()
