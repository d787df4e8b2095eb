from __future__ import annotations

from faulty_jobs import Job, case_of

import stepscope.comparison.diagnosis as package


def test_the_package_gives_a_case_and_its_diagnosis():
    assert set(package.__all__) == {"Case", "Diagnosis", "diagnose", "views", "OF_TIMES"}
    assert isinstance(package.diagnose(case_of(Job(), Job())), package.Diagnosis)
