"""The installed distributions that provide a module, as the standard library finds them."""

from importlib.metadata import packages_distributions

from attn_spec.isolation.installed import providers


def test_every_module_has_the_distributions_that_the_standard_library_names():
    expected = {module: sorted(set(names)) for module, names in packages_distributions().items()}

    found = {module: sorted({each.name for each in providers(module)}) for module in expected}

    assert {"numpy", "torch", "hypothesis", "attn_spec"} <= expected.keys()
    assert found == expected


def test_a_module_of_nobody_has_none():
    assert providers("adapter") == []
