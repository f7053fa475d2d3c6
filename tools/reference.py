"""Writes the generated pages of docs/ anew: the command line, the checks, the states of a repair, the metrics."""

from __future__ import annotations

from hyperpod.cli.reference import render_reference
from hyperpod.controller.metrics import reference_page
from hyperpod.core.states_doc import render_states
from hyperpod.health.reference import render_checks
from tools.aws_calls import render_aws_calls
from tools.cluster import ROOT
from tools.iam import render_iam


def main() -> None:
    """Write every generated page."""
    docs = ROOT / "docs"
    (docs / "states.md").write_text(render_states())
    (docs / "reference" / "cli.md").write_text(render_reference())
    (docs / "reference" / "checks.md").write_text(render_checks())
    (docs / "reference" / "metrics.md").write_text(reference_page())
    (docs / "reference" / "aws-calls.md").write_text(render_aws_calls())
    (docs / "reference" / "iam.md").write_text(render_iam())


if __name__ == "__main__":
    main()
