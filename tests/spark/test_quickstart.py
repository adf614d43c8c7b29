"""The first example does what its first lines say, in the session of these tests.

As a program of its own it is run by ``make proof`` (``tests/integration/test_examples.py``).
"""

from __future__ import annotations

import pytest

from examples import quickstart
from tests.integration.test_examples import check_quickstart
from tests.spark.conftest import Lab


def test_quickstart_prints_rows_and_their_positions(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    quickstart.run(lab.spark, lab.cluster.uri)
    check_quickstart(capsys.readouterr().out)
