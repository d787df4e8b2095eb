from __future__ import annotations

import stepscope
from stepscope import plugins


def test_every_name_is_there_and_is_the_one_that_the_package_uses():
    assert all(hasattr(plugins, name) for name in plugins.__all__)
    assert plugins.Trace is stepscope.Trace
    assert sorted(plugins.__all__, key=lambda n: (not n.isupper(), n)) == plugins.__all__
