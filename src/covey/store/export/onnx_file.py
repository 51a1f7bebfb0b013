"""A version as an ONNX file, checked with onnxruntime on the evaluation set; with int8 where its scores allow."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.faults import in_task
from covey.store.export.loaded import LoadedModel, exporting, needed_for_export
from covey.task.definition import scores

CLOSE = 1e-4  # the most by which an output may differ, of 1 or of its value where that is more
POINT = 0.01  # the most by which int8 may change a score, unless told
CHECKED = 1000  # samples of the training data, where the task has no evaluate
CALIBRATED = 512  # samples of the training data from which int8 takes its ranges
SUMS = ["Gemm", "MatMul"]  # what these give is rounded where the next layer takes it, and not at the model's end
INPUT, OUTPUT = "input", "output"


@dataclass(frozen=True, slots=True)
class OnnxCheck:
    """How an ONNX file compares with the module that it was made of."""

    samples: int
    largest: float  # difference of an output
    before: Mapping[str, float]  # the module's scores
    after: Mapping[str, float]  # the file's

    def __str__(self) -> str:
        pairs = (f"{name} {self.before[name]:.4g} became {self.after[name]:.4g}" for name in self.before)
        return ", ".join([f"outputs differ by at most {self.largest:.2g} over {self.samples} samples", *pairs])

    def worst(self) -> tuple[str, float]:
        """The score that changed most, and by how much, of 1 or of its value where that is more."""
        moved = {name: _apart(value, self.after.get(name, math.nan)) for name, value in self.before.items()}
        return max(moved.items(), key=lambda pair: pair[1], default=("", 0.0))


class OnnxAnswers(nn.Module):
    """Answers as an ONNX file does, and compares each answer with the module's own."""

    def __init__(self, file: Path, module: nn.Module) -> None:
        super().__init__()
        runtime = needed_for_export("onnxruntime", "--onnx")
        settings = runtime.SessionOptions()
        settings.log_severity_level = 3
        self.session = runtime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        self.module, self.samples, self.largest = module, 0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            mine = self.module(x)
        theirs = torch.from_numpy(self.session.run([OUTPUT], {INPUT: x.detach().cpu().numpy()})[0])
        if theirs.shape != mine.shape:
            raise PlanError(f"the ONNX file gives {tuple(theirs.shape)} where the model gives {tuple(mine.shape)}")
        apart = (theirs.double() - mine.double()).abs() / mine.double().abs().clamp(min=1)
        largest = float(apart.max()) if apart.numel() else 0.0
        self.largest = max(self.largest, largest if math.isfinite(largest) else math.inf)
        self.samples += len(x)
        return theirs


def write_onnx(model: LoadedModel, to: Path) -> OnnxCheck:
    """Write a version as ONNX to a file that nobody else reads yet, and check it."""
    needed_for_export("onnx", "--onnx")
    needed_for_export("onnxscript", "--onnx")
    example = model.example()
    with torch.no_grad(), exporting(model.version, "torch.onnx"), _quiet():
        if not isinstance(model.module(example), Tensor):
            raise PlanError(f"{model.version.text}: a model that is exported as ONNX gives one tensor")
        torch.onnx.export(
            model.module, (example,), str(to), dynamo=True, external_data=False, verbose=False,
            input_names=[INPUT], output_names=[OUTPUT], dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    found = check_onnx(model, to)
    if not found.largest <= CLOSE:
        raise PlanError(f"{model.version.text} is not exported: {found}; at most {CLOSE:g} is allowed")
    return found


def write_int8(model: LoadedModel, plain: Path, to: Path, tolerance: float) -> OnnxCheck:
    """Write the file `plain` with weights and activations of 8 bits; refused where a score changes too much."""
    if model.task.evaluate is None:
        raise PlanError(f"{model.version.text}: its task has no evaluate=…, so nobody can tell what --int8 costs")
    tools = needed_for_export("onnxruntime.quantization", "--int8")
    shapes = needed_for_export("onnxruntime.quantization.shape_inference", "--int8")
    prepared = plain.with_name("prepared.onnx")
    with exporting(model.version, "onnxruntime"), _quiet():
        shapes.quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
        tools.quantize_static(
            str(prepared), str(to), CalibrationBatches(model.inputs(CALIBRATED)), quant_format=tools.QuantFormat.QDQ,
            per_channel=True, activation_type=tools.QuantType.QInt8, weight_type=tools.QuantType.QInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": SUMS},
        )  # fmt: skip
    found = check_onnx(model, to)
    name, moved = found.worst()
    if not moved <= tolerance:
        raise PlanError(
            f"{model.version.text} is not exported as int8: {name} was {found.before[name]:.6g} and is "
            f"{found.after[name]:.6g}; --tolerance {tolerance:g} allows less"
        )
    return found


class CalibrationBatches:
    """Training data, as onnxruntime asks for it."""

    def __init__(self, inputs: Iterator[Tensor]) -> None:
        self._inputs = inputs

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self._inputs, None)
        return None if batch is None else {INPUT: batch.numpy()}


def check_onnx(model: LoadedModel, file: Path) -> OnnxCheck:
    """Score the file as the task scores its model; without an evaluate, compare answers on the training data."""
    with exporting(model.version, "onnxruntime"):
        answers = OnnxAnswers(file, model.module).eval()
    evaluate, before, after = model.task.evaluate, dict[str, float](), dict[str, float]()
    if evaluate is not None:
        with in_task("evaluate(model)"), torch.no_grad():
            before, after = scores(evaluate(model.module)), scores(evaluate(answers))
        model.module.eval()
    if not answers.samples:  # evaluate looks into the model, or there is none
        before, after = {}, {}
        with torch.no_grad():
            for batch in model.inputs(CHECKED):
                answers(batch)
    return OnnxCheck(answers.samples, answers.largest, before, after)


def _apart(one: float, other: float) -> float:
    moved = abs(one - other) / max(1.0, abs(one))
    return moved if math.isfinite(moved) else math.inf


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters print and warn of by the page."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
