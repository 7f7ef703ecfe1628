"""Reports are found by their entry points."""

from importlib.metadata import entry_points

import pytest
from attn_spec.reports.errors.command import write_report
from attn_spec.reports.proof.teeth.command import write_teeth
from attn_spec.reports.statistics.command import write_statistics

from attn_spec.evidence.report import GROUP, ReportError, writer


def test_reports_are_found_by_name():
    assert writer("report") is write_report
    assert writer("statistics") is write_statistics
    assert writer("teeth") is write_teeth


def test_an_unknown_report_is_an_error_that_lists_the_known_ones():
    known = ", ".join(sorted(entry_points(group=GROUP).names))

    with pytest.raises(ReportError, match=f"no report is called 'teehts'; installed are: {known}"):
        writer("teehts")
