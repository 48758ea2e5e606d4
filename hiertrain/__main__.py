"""``python -m hiertrain`` is the ``hiertrain`` command."""

from hiertrain.cli import main

main()
