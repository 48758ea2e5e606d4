"""``python -m hiertrain`` is the ``hiertrain`` command."""

from hiertrain.cli import main

if __name__ == "__main__":
    main()
