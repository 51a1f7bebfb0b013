"""What every form of the kernels must keep, against formulas in float64; also where there is no pytest:

`PYTHONPATH=src python -m tests.exchange.kernel_laws cuda` (or `cpu`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from covey.errors import WireError
from tests.exchange.kernel_forms import NAMES, SCALED, UNBIASED, Form, expected, inputs, pair

EXACT = ("few", "wide", "denormal")


def law_formulas(form: Form, name: str, block: int, count: int) -> None:
    """Decoded is what the formula says; v = decoded + residual; without a residual the codes are the same."""
    x, residual = inputs(form, count)
    v, kept = x + residual, residual.clone()
    encode, decode = pair(form, name, block)
    dec = decode(encode(x, kept), torch.full_like(x, float("nan")))
    torch.testing.assert_close(dec + kept, v, rtol=1e-5, atol=1e-6)
    want, close = expected(name, v, block)
    wrong = (dec.cpu().double() - want).abs() > 1e-5 + 1e-5 * want.abs()
    assert not (wrong & ~close).any(), f"{name} block {block} of {count}: {int(wrong.sum())} differ"
    assert close.float().mean() < 0.3 or count < 40
    torch.testing.assert_close(decode(encode(v, None), torch.empty_like(x)), dec, rtol=0, atol=0)


def law_choices(form: Form, count: int) -> None:
    """select, topk and mstopk take what they should and leave the rest."""
    x, residual = inputs(form, count)
    x = (x * 4).round() / 4  # with ties
    residual = (residual * 4).round() / 4
    v = x + residual
    order = sorted(range(count), key=lambda i: (-abs(float(v[i])), i))
    for k in {0, min(1, count), count // 100, count // 3, count}:
        kept = residual.clone()
        indices, values = form.topk(x, kept, k)
        assert indices.tolist() == sorted(order[:k])
        taken(v, kept, indices, values)
        kept = residual.clone()
        indices, values = form.mstopk(x, kept, k, 30, 3)
        assert indices.numel() == len(set(indices.tolist())) == k
        taken(v, kept, indices, values)
        if k:
            least = abs(float(v[order[k - 1]]))
            assert (values.abs() >= least).all() or k * 3 > count  # ties and all, beyond the mean: any run
    for threshold in (0.0, 0.25, 1.0, 2.6, 100.0):
        kept = residual.clone()
        indices, values = form.select(x, kept, threshold)
        assert indices.tolist() == (v.abs() >= threshold).nonzero().view(-1).tolist()
        taken(v, kept, indices, values)


def law_top(form: Form, count: int, kind: str) -> None:
    """The same choice as the plain form's, where a sample leads: with ties, sorted, nearly empty, alike, or in tiers.

    In tiers the k-th of a hundredth is a hundred times the size that somewhat more numbers reach. Of few values, sizes
    of all exponents and denormal numbers only the exact choice is the same: means differ in their last bits.
    """
    x, residual = inputs(form, count)
    x, residual = (x * 64).round() / 64, (residual * 64).round() / 64
    if kind == "sorted":
        x = x.sort().values
    if kind == "sparse":
        x, residual = x * (x > 3), residual * 0
    if kind == "alike":
        x, residual = x * 0 - 1, residual * 0
    if kind == "tiers":
        tier = torch.arange(count, device=x.device) * 7919 % 1000  # 12 of a thousand are large, 8 are not small
        x, residual = torch.where(tier < 12, 100.0, torch.where(tier < 20, 1.0, 1e-3)) + x / 1e4, residual * 0
    if kind in EXACT:
        unusual = {"few": (x * 2).round(), "wide": x.sign() * 2 ** (x * 25), "denormal": x * 1e-40}
        x, residual = unusual[kind], residual * 0
    other = Form("plain", "cpu")
    for k in (1, count // 1000, count // 100, count // 3, count - 1):
        for rounds in (0,) if kind in EXACT else (0, 30, 2):
            kept, theirs = residual.clone(), residual.cpu()
            if rounds:
                got, want = form.mstopk(x, kept, k, rounds, 3), other.mstopk(x.cpu(), theirs, k, rounds, 3)
            else:
                got, want = form.topk(x, kept, k), other.topk(x.cpu(), theirs, k)
            assert torch.equal(got[0].cpu(), want[0]) and torch.equal(got[1].cpu(), want[1]), (kind, k, rounds)
            assert torch.equal(kept.cpu(), theirs), (kind, k, rounds)


def law_reached(form: Form, count: int) -> None:
    """Few numbers reach, anywhere, side by side, or more than expected; with NaN beside them all is as it was."""
    x, residual = inputs(form, count)
    place = torch.arange(count, device=x.device)
    for few in (place % 97 == 5, place >= count - count // 20, (place > 70) & (place < 140), place % 3 == 0):
        big, kept = torch.where(few, x.sign() * 100, x), residual.clone()
        taken(big + residual, kept, *form.select(big, kept, 50.0))
        indices, values = form.select(big, None, 50.0)
        assert torch.equal(indices.long(), few.nonzero().view(-1)) and torch.equal(values, big[few])
        big[count // 2], kept = float("nan"), residual.clone()
        try:
            form.select(big, kept, 50.0)
        except WireError:
            torch.testing.assert_close(kept, residual, rtol=1e-5, atol=1e-5)
        else:
            raise AssertionError("select took NaN")


def taken(v: Tensor, kept: Tensor, indices: Tensor, values: Tensor) -> None:
    left = v.clone()
    left[indices.long()] = 0
    assert torch.equal(values, v[indices.long()]) and torch.equal(kept, left) and indices.dtype == torch.int32


def law_feedback(form: Form, name: str, block: int) -> None:
    """Over many steps, all that was decoded and the residual are all that went in."""
    residual = torch.zeros(1000, device=form.device)
    put_in, came = torch.zeros_like(residual), torch.zeros_like(residual)
    for step in range(8):
        encode, decode = pair(form, name, block, seed=step)
        x, _ = inputs(form, 1000, step)
        put_in += x
        came += decode(encode(x, residual), torch.empty_like(x))
    torch.testing.assert_close(came + residual, put_in, rtol=1e-5, atol=2e-5)
    assert not torch.equal(came, put_in)


def law_unbiased(form: Form, name: str) -> None:
    """The mean over numbers and seeds is the number: within 5 standard errors, and seeds draw apart."""
    many = min(20_000, form.most)
    for value in (0.3001, -0.0817):
        x = torch.full((many,), value, device=form.device)
        x[0] = 1.0
        means, decs = [], []
        for seed in range(4):
            encode, decode = pair(form, name, 0 if name != "qsgd" else 128, seed)
            decs.append(decode(encode(x, None), torch.empty_like(x))[1:])
            means.append(float(decs[-1].mean()))
        error = float(decs[0].std()) / (4 * many) ** 0.5
        assert abs(sum(means) / 4 - value) < 5 * error + 1e-6, (name, value, means, error)
        assert not torch.equal(decs[0], decs[1])


def law_refusal(form: Form, name: str, block: int, poison: float, place: int, count: int = 0) -> None:
    """NaN, infinity and sums beyond float32 raise, and the residual is what it was."""
    count = count or min(20_000, form.most)
    x, residual = inputs(form, count)
    x[place % count] = poison
    if abs(poison) == 3e38:
        residual[place % count] = poison
    kept = residual.clone()
    try:
        pair(form, name, block)[0](x, kept)
    except WireError:
        torch.testing.assert_close(kept, residual, rtol=1e-5, atol=1e-6)
    else:
        raise AssertionError(f"{name} took {poison}")


def law_agreement(form: Form, name: str, block: int, count: int) -> None:
    """The same codes as the plain form on a CPU; sums may differ in their last bits."""
    x, residual = inputs(form, count)
    own, theirs = residual.clone(), residual.cpu()
    wire = pair(form, name, block)[0](x, own)
    other = pair(Form("plain", "cpu"), name, block)[0](x.cpu(), theirs)
    for a, b in zip(*(w if isinstance(w, tuple) else (w,) for w in (wire, other)), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, (name, a.shape, b.shape)
        if a.is_floating_point():
            torch.testing.assert_close(a.cpu(), b, rtol=2e-6, atol=1e-7)
        elif name in ("onebit", "clipped", "qsgd", "mstopk"):
            assert (a.cpu() != b).float().mean() < 1e-3
        else:
            assert torch.equal(a.cpu(), b), (name, block, count)
    if name not in ("clipped", "qsgd", "mstopk"):
        torch.testing.assert_close(own.cpu(), theirs, rtol=1e-5, atol=1e-6)


def law_zeros(form: Form, name: str) -> None:
    """Zeros stay zeros (dorefa's scale is 0 then), and so do numbers too small to have an inverse."""
    for tiny in (0.0, 1e-40):
        x = torch.full((100,), tiny, device=form.device)
        encode, decode = pair(form, name, 32)
        dec = decode(encode(x, None), torch.empty_like(x))
        assert (
            torch.isfinite(dec).all()
            and (dec.abs() <= max(tiny, 2.0**-126 if tiny and name == "natural" else tiny)).all()
        )


def law_some_zeros(form: Form, name: str) -> None:
    """Zeros among other numbers: what is decoded and what is kept are what went in."""
    x, residual = inputs(form, 1000)
    x[::3] = residual[::3] = 0.0
    v, (encode, decode) = x + residual, pair(form, name, 64)
    dec = decode(encode(x, residual), torch.empty_like(x))
    torch.testing.assert_close(dec + residual, v, rtol=1e-5, atol=1e-6)


def law_widths(form: Form, block: int) -> None:
    """Codes of one byte and of two in turn, which nothing that is kept between calls may confuse."""
    x, _ = inputs(form, 800)
    for levels in (15, 300, 15):
        q, norms = form.qsgd_encode(x, None, block, levels, 5, "max")
        want = Form("plain", "cpu").qsgd_encode(x.cpu(), None, block, levels, 5, "max")
        assert torch.equal(q.cpu(), want[0]) and torch.equal(norms.cpu(), want[1]), (block, levels)
        dec = form.qsgd_decode(q, norms, block, levels, torch.empty_like(x))
        assert ((dec - x).abs() <= norms.max() / levels * 1.001).all(), (block, levels)


def law_extremes(form: Form, block: int) -> None:
    """Norms and deviations of numbers whose squares do not fit into float32."""
    x, _ = inputs(form, 640)
    for scale in (1e-25, 1e25):
        v = x * scale
        each = v.double().view(-1, block or 640)
        norms = form.qsgd_encode(v, None, block, 15, 5, "l2")[1]
        torch.testing.assert_close(norms.double(), each.norm(dim=1), rtol=1e-6, atol=0)
        limits = form.terngrad_encode(v, None, block, 5, 1.5)[1]
        torch.testing.assert_close(limits.double(), 1.5 * each.std(1, correction=0), rtol=1e-5, atol=0)


def law_adding(form: Form, name: str) -> None:
    """A decoder adds with a weight."""
    x, out = inputs(form, 333)
    wire = pair(form, name, 32)[0](x, None)
    dec = pair(form, name, 32)[1](wire, torch.empty_like(x))
    weighed = {
        "onebit": lambda o: form.onebit_decode(*wire, 32, o, 0.5),
        "int8": lambda o: form.int8_decode(*wire, 32, o, 0.5),
        "terngrad": lambda o: form.terngrad_decode(*wire, 32, o, 0.5),
        "dorefa": lambda o: form.dorefa_decode(*wire, 32, 3, o, 0.5),
        "natural": lambda o: form.natural_decode(*wire, o, 0.5),
    }[name]
    torch.testing.assert_close(weighed(out.clone()), out + 0.5 * dec, rtol=1e-6, atol=1e-6)


def law_shared_scale(form: Form) -> None:
    """Workers that share a scale: sums are whole multiples of it, and clipping is by one's own."""
    x, other = inputs(form, 500)
    other = other * 3
    scale = torch.maximum(form.terngrad_scale(x, None, 100, 2.5), form.terngrad_scale(other, None, 100, 2.5))
    total = torch.zeros_like(x)
    for part in (x, other):
        wire = form.terngrad_encode(part, None, 100, 1, 2.5, scale)
        assert torch.equal(wire[1], scale)
        form.terngrad_decode(*wire, 100, total, 1.0)
    counts = total.view(5, 100) / scale.view(5, 1)
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-6)


Laws = Iterable[tuple[str, Callable[[], None]]]


def laws(form: Form, quick: bool = False) -> Laws:
    """Every law with every setting."""
    yield from laws_of_codes(form, quick)
    yield from laws_of_choice(form, quick)
    yield from laws_of_feedback(form)


def laws_of_codes(form: Form, quick: bool) -> Laws:
    small = range(0, 3 * 16 + 2, 7 if quick else 1)
    large = [n for n in (4095, 4097, 8200, 50_001) if n <= form.most]
    for name in NAMES[:-3]:
        for block in (16, 0, 7, 32) if name in SCALED else (0,):
            yield f"formulas {name} {block}", partial(each, partial(law_formulas, form, name, block), small)
            if form.name != "plain":
                yield f"agreement {name} {block}", partial(each, partial(law_agreement, form, name, block), large)
        for block in (4096, 40_000) if name in SCALED and not quick else ():
            sizes = [n for n in (3 * 4096 + 1, 3 * 40_000 + 1) if n <= form.most]
            yield f"large {name} {block}", partial(each, partial(law_formulas, form, name, block), sizes)
        yield f"zeros {name}", partial(law_zeros, form, name)
        yield f"some zeros {name}", partial(law_some_zeros, form, name)
    for name in UNBIASED:
        yield f"unbiased {name}", partial(law_unbiased, form, name)
    for name in ("onebit", "int8", "terngrad", "dorefa", "natural"):
        yield f"adding {name}", partial(law_adding, form, name)
    for block in (64, 0):
        yield f"widths {block}", partial(law_widths, form, block)
        yield f"extremes {block}", partial(law_extremes, form, block)
    yield "shared scale", partial(law_shared_scale, form)


def laws_of_choice(form: Form, quick: bool) -> Laws:
    sizes = [*range(0, 50, 7 if quick else 1), *(n for n in (4097, 9001) if n <= form.most)]
    yield "choices", partial(each, partial(law_choices, form), sizes)
    yield "reached", partial(each, partial(law_reached, form), (n for n in (9001, 1_000_003) if n <= form.most))
    for kind in ("normal", "sorted", "sparse", "alike", "tiers", *EXACT) if form.name != "plain" else ():
        yield f"top {kind}", partial(law_top, form, 66_000 if quick else 100_001, kind)
    for name in ("select", "topk", "mstopk"):
        yield f"refusal {name} far", partial(law_refusal, form, name, 0, float("nan"), 61_234, 90_000)


def laws_of_feedback(form: Form) -> Laws:
    for name in NAMES:
        for block in (64, 0) if name in SCALED else (0,):
            yield f"feedback {name} {block}", partial(law_feedback, form, name, block)
            for poison, place in ((float("nan"), 3), (float("-inf"), 13_000), (3e38, 19_999)):
                yield f"refusal {name} {poison}", partial(law_refusal, form, name, block, poison, place)


def each(law: Callable[[int], None], sizes: Iterable[int]) -> None:
    for size in sizes:
        law(size)


def main(device: str, part: int = 0, parts: int = 1) -> int:
    """Every `parts`-th law from `part` on, so that several processes can share them."""
    broken, form = 0, Form("gpu" if device == "cuda" else device, "cuda" if device == "cuda" else "cpu")
    for title, law in islice(laws(form), part, None, parts):
        try:
            law()
        except Exception as error:  # all that break are told
            broken += 1
            print(f"BROKEN {title}: {type(error).__name__} {str(error)[:300]}")
    print(f"{device}: {broken} laws broken")
    return broken


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1], *map(int, sys.argv[2:])), 1))
