"""covey models export: a version for other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from covey import atomic_file
from covey.cli import json_file, options
from covey.cli.errors import explained
from covey.cli.models.flags import Store, Version, opened
from covey.cli.options import FlagGroup, flag, grouped, teller
from covey.cli.training import importing
from covey.cli.typed_flags import decimal
from covey.errors import PlanError

if TYPE_CHECKING:
    from covey.store.export.loaded import LoadedModel
    from covey.store.model_store import ModelStore
    from covey.store.versions import ModelVersion

TO = "Where to"


@dataclass(frozen=True, kw_only=True)
class ExportFlags(FlagGroup):
    """The formats."""

    onnx: Annotated[Path | None, flag("--onnx", "FILE", "Write ONNX, checked on the evaluation set.", TO)] = None
    int8: Annotated[bool, flag("--int8", "", "Write ONNX with 8 bits, calibrated on training data.", TO)] = False
    tolerance: Annotated[
        float | None,
        flag("--tolerance", "SHARE", "By how much --int8 may change a score. (default: 0.01)", TO, parser=decimal),
    ] = None
    torch_export: Annotated[
        Path | None, flag("--torch-export", "FILE", "Write an archive of torch.export.", TO)
    ] = None
    safetensors: Annotated[Path | None, flag("--safetensors", "FILE", "Write the weights.", TO)] = None
    huggingface: Annotated[
        Path | None, flag("--huggingface", "DIR", "Write a folder for the Hugging Face hub.", TO)
    ] = None
    mlflow: Annotated[str | None, flag("--mlflow", "URI", "Register it with MLflow, too.", TO)] = None
    task: Annotated[
        str | None, flag("--task", "FILE[:NAME]", "The task to build the model by. (default: that of the run)", TO)
    ] = None

    def check(self) -> None:
        """Refuse what contradicts itself, and places that cannot be written."""
        if not any([self.onnx, self.torch_export, self.safetensors, self.huggingface, self.mlflow]):
            raise PlanError(
                "say where to: --onnx FILE, --torch-export FILE, --safetensors FILE, --huggingface DIR or --mlflow URI"
            )
        if self.int8 and self.onnx is None:
            raise PlanError("--int8 is for ONNX: add --onnx FILE")
        if self.task is not None and not (self.onnx or self.torch_export):
            raise PlanError(f"--task {self.task} builds the model for --onnx and --torch-export: add one, or omit it")
        if self.tolerance is not None and (not self.int8 or not 0 <= self.tolerance < 1):
            raise PlanError(f"--tolerance {self.tolerance:g}: give a share from 0 to 1, such as 0.01, with --int8")
        usual_names = {"onnx": "model.onnx", "torch_export": "model.pt2", "safetensors": "model.safetensors"}
        for name, usual in usual_names.items():
            if (path := getattr(self, name)) is not None:
                atomic_file.check(path, f"--{name.replace('_', '-')} {path}", usual)


@grouped
def command(*, name: Version, to: ExportFlags, store: Store = None, output: options.VoiceFlags) -> None:
    """Export a version; each export becomes a part of its lineage.

    covey models export digits --onnx digits.onnx
    """
    manner = output.voice
    with explained(manner):
        to.check()
        with importing(manner):
            from covey.store.export.loaded import load_version

        place = opened(store)
        version, say = place.named(name), teller(manner)
        model = load_version(place, version, to.task, say) if to.onnx or to.torch_export else None
        for line in _export(place, version, model, to):
            if manner != "quiet":
                json_file.console(None).print(line, markup=False, soft_wrap=True)


def _export(place: ModelStore, version: ModelVersion, model: LoadedModel | None, to: ExportFlags) -> list[str]:
    """Write all that was asked for, and say of each what it is."""
    from covey.checkpoint.files import seal
    from covey.store.export import layouts
    from covey.store.export.mlflow_mirror import mirror

    said = []
    if to.safetensors:
        file = atomic_file.meant(to.safetensors)
        layouts.write_weights(place, version, file)
        place.note_use(version, "safetensors", str(to.safetensors.absolute()), seal(file)[1])
        said.append(f"{to.safetensors}: the weights of {version.text}")
    if to.torch_export and model:
        with atomic_file.replacing(atomic_file.meant(to.torch_export)) as new:
            layouts.write_archive(model, new)
            digest = seal(new)[1]
        place.note_use(version, "torch-export", str(to.torch_export.absolute()), digest)
        said.append(f"{to.torch_export}: an archive of torch.export, which may hold pickles: load only what you trust")
    if to.onnx and model:
        said.append(_onnx(place, model, to.onnx, to))
    if to.huggingface:
        layouts.write_huggingface(place, version, to.huggingface)
        place.note_use(version, "huggingface", str(to.huggingface.absolute()))
        said.append(f"{to.huggingface}: {', '.join((layouts.WEIGHTS, layouts.CONFIG, layouts.CARD))}")
    if to.mlflow:
        there = mirror(place, version, to.mlflow)
        place.note_use(version, "mlflow", there)
        said.append(f"registered with MLflow: {there}")
    return said


def _onnx(place: ModelStore, model: LoadedModel, file: Path, to: ExportFlags) -> str:
    from covey.checkpoint.files import seal
    from covey.store.export.onnx_file import POINT, write_int8, write_onnx

    with atomic_file.replacing(atomic_file.meant(file)) as new:
        if to.int8:
            plain = new.with_name("plain.onnx")
            write_onnx(model, plain)
            found = write_int8(model, plain, new, POINT if to.tolerance is None else to.tolerance)
        else:
            found = write_onnx(model, new)
        digest = seal(new)[1]
    place.note_use(model.version, "onnx", str(file.absolute()), digest)
    return f"{file}: {found}"
