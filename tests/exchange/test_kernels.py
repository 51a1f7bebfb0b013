"""The kernels keep their laws in every form that can run here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from tests.exchange.kernel_forms import Form
from tests.exchange.kernel_laws import laws

alike = pytest.mark.xdist_group("kernels")  # one process compiles them


def titled(form: Form, quick: bool) -> list[object]:
    return [pytest.param(law, id=f"{n} {title}") for n, (title, law) in enumerate(laws(form, quick))]


@alike
@pytest.mark.parametrize("law", titled(Form("plain", "cpu"), quick=True))
def test_plain_form(law: Callable[[], None]) -> None:
    law()


@alike
@pytest.mark.parametrize("law", titled(Form("cpu", "cpu"), quick=False))
def test_compiled_for_the_cpu(law: Callable[[], None]) -> None:
    law()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_triton_on_a_gpu() -> None:
    for title, law in laws(Form("gpu", "cuda")):
        print(title)
        law()


@pytest.mark.full
def test_triton_in_its_interpreter(pytestconfig: pytest.Config) -> None:
    """The same code without a GPU, number by number; in its own process, as the choice is made at import."""
    pytest.importorskip("triton")
    script = (
        "from tests.exchange.kernel_forms import Form\n"
        "from tests.exchange.kernel_laws import laws\n"
        "for title, law in laws(Form('gpu', 'cpu', most=9100), quick=True):\n"
        "    if not title.startswith('top '):\n"
        "        law()\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        cwd=pytestconfig.rootpath,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
