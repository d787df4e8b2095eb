from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.ncu_join.kernel_names import parsed, same_kernels

#: What NVIDIA's tools write, and what PyTorch does.
PAIRS = [
    (
        "void a::act<c10::BFloat16, &a::silu<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)",
        "void a::act<c10::BFloat16, &a::silu<c10::BFloat16>, true>(c10::BFloat16*, c10::BFloat16 const*, int)",
    ),
    (
        "void at::fill<(int)4, at::Functor<float>, std::array<char *, (unsigned long)1>>(int, T2, T3)",
        "void at::fill<4, at::Functor<float>, std::array<char*, 1ul> >(int, at::Functor<float>, x)",
    ),
    (
        "void <unnamed>::softmax<float, float, (int)10, (bool)0>(T2 *, const T1 *, int)",
        "void (anonymous namespace)::softmax<float, float, 10, false>(float*, float const*, int)",
    ),
    (
        "void e<(int)1, void at::f<at::copy(I &)::[lambda() (instance 3)]::operator ()() const>(I &, T1 &)>(int, T3)",
        "void e<1, at::f<at::copy(I&)::{lambda()#3}::operator()() const>(I&, float const&)>(int, x)",
    ),
    (
        "std::enable_if<T2>(int)0&&a::_type<T1>::exists, void>::type a::norm<c10::BFloat16, (int)8>(T1 *, long)",
        "std::enable_if<(8>(0))&&_type<c10::BFloat16>::exists, void>::type a::norm<c10::BFloat16, 8>(x*, long)",
    ),
    ("reduce<(c10::ScalarType)6, (int)-1>(T1)", "reduce<(c10::ScalarType)6, -1>(x)"),
    ("gemm.kd", "gemm [clone .kd]"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_one_kernel_is_the_same_in_both_spellings(one, other):
    assert parsed(one) == parsed(other)
    assert same_kernels([one], [other, "other"]) == {one: (other,)}


@pytest.mark.parametrize(
    ("name", "path", "is_made_for"),
    [
        ("ampere_sgemm_128x64_tn", ("ampere_sgemm_128x64_tn",), False),
        ("void cutlass::Kernel<cutlass_80_gemm>(T1::Params)", ("cutlass", "Kernel"), True),
        ("ns::A<int>::run(int)", ("ns", "A", "run"), True),
        ("_ZN7cutlass6KernelI34cutlass_80E", ("cutlass", "Kernel"), False),
        ("_Z5saxpyifPfS_", ("saxpy",), False),
        ("", ("",), False),
    ],
)
def test_a_name_has_a_path_and_perhaps_arguments_of_its_template(name, path, is_made_for):
    found = parsed(name)
    assert (found.path, found.is_made_for) == (path, is_made_for)


FULL, OTHER = "void ns::copy<(int)4>(T1 *)", "void ns::copy<(int)8>(T1 *)"


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        (FULL, [OTHER, FULL], (FULL,)),  # itself
        (FULL, [OTHER], None),  # made for something else
        ("copy", [FULL, OTHER], (FULL, OTHER)),  # either of them
        ("ns::copy", [FULL, OTHER], (FULL, OTHER)),
        ("other::copy", [FULL, OTHER], None),
        (FULL, ["copy"], ("copy",)),
        (FULL, ["other::copy"], None),
        (FULL, ["_ZN2ns4copyILi4EEEvPf"], ("_ZN2ns4copyILi4EEEvPf",)),
        ("_ZN2ns4copyILi4EEEvPf", [FULL, OTHER], (FULL, OTHER)),
        ("_Z3addv", ["add(float *)"], ("add(float *)",)),
        ("add", ["sub"], None),
    ],
)
def test_less_is_said_of_the_same_kernel(name, known, found):
    assert same_kernels([name], known).get(name) == found


@given(st.lists(st.text("ab<>():, *[]{}#_Z01", max_size=20), max_size=6), st.text("ab<>(): ", max_size=20))
def test_any_text_is_a_name_that_means_at_least_itself(known, name):
    assert same_kernels([name], [*known, name])[name] == (name,)
    for other in same_kernels([name], known).get(name, ()):
        assert parsed(name).may_be(parsed(other))
        assert parsed(other).may_be(parsed(name))
