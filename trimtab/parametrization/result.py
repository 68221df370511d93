"""The parametrization of one model: numbers that act on it, and nothing else.

A `Parametrization` holds the table of what was found; it rescales the model's parameters once, in place, and gives the
parameter groups for an optimizer, size-invariant clipping and a check that nothing has erased the factors. The model
keeps its code, its modules and its state dict keys. See docs/theory.md, equations (5), (7), (8) and (19).
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import InputError, LawError, OptimizerError, faults
from trimtab.parametrization import proof, rules
from trimtab.parametrization.init_measurement import Draw, measure
from trimtab.parametrization.meta_buffers import confirm
from trimtab.parametrization.optimizers import default, family
from trimtab.parametrization.parameters import Branch, Row, row_from
from trimtab.parametrization.proof_verdicts import Proof
from trimtab.parametrization.rules import Scheme
from trimtab.parametrization.table import render, rich_table
from trimtab.structure.tails import scaled
from trimtab.structure.trace import adjustable

FORMAT = 1
COUPLED = "coupled L2 inside a normalised optimizer keeps either its time scale or its balance with the gradient over size, not both; AdamW keeps lr x wd."


NoDecay = str | Iterable[str] | Callable[[Row], bool] | None


class Parametrization:
    """What `parametrize` found and what follows from it. Rows are read by name: `p["head.weight"].u`."""

    def __init__(
        self,
        rows: dict[str, Row],
        branches: list[Branch],
        depth: float | dict[str, float],
        scheme: Scheme,
        gamma0: float,
        width: float,
    ):
        self.rows, self.branches, self.depth = rows, branches, depth
        self.scheme, self.gamma0, self.width = scheme, gamma0, width
        self.notes: list[str] = []
        self.proof = Proof(reason="nothing was tried yet")
        self._trial: proof.Trial | None = None
        self._applied = True  # the model's numbers are those it trains from
        self._draws: dict[str, Draw] = {}
        self._aliases: dict[str, str] = {}
        self._numbers: dict[str, float] = {}  # buffers that meta hid, as they were planned with
        self._models: list[nn.Module] = []  # where the parameters are: the model, then its wrappers
        self._families: dict[Any, rules.Family] = {}  # of the optimizers whose groups were made
        self._exempt: set[str] = set()  # names that some groups do not decay, and names that some do
        self._decayed: set[str] = set()

    def __getitem__(self, name: str) -> Row:
        name = self._aliases.get(name, name)
        if name not in self.rows:
            raise KeyError(name)
        return self.rows[name]

    def __iter__(self) -> Iterable[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return render(self)

    def __rich__(self) -> Any:
        return rich_table(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parametrization) and not self.differences(other)

    __hash__ = None  # type: ignore[assignment]

    # -- the model -------------------------------------------------------------------------------------------------

    def _remember(self, model: nn.Module) -> None:
        if not any(known is model for known in self._models):
            self._models.append(model)

    def named_parameters(self, model: nn.Module | None = None) -> dict[str, nn.Parameter]:
        """This parametrization's parameters inside `model`, wrappers and prefixes looked through.

        Args:
            model: the model itself, or a wrapped one (DDP, FSDP2, compile, an EMA copy). Default: the one that was
                parametrized.
        """
        if model is None:
            if not self._models:
                raise InputError("this parametrization was read from JSON and has no model: pass model=.")
            model = self._models[0]
        found = self._inside(model)
        for name, q in found.items():
            if tuple(q.shape) != self.rows[name].shape:
                raise InputError(
                    f"the model given must have the size that was parametrized: {name} is {tuple(q.shape)} there and {self.rows[name].shape} here. Parametrize that model against its base."
                )
        return found

    def _inside(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters by row, all under one prefix: a head and an auxiliary head are called alike from the end."""
        given = dict(model.named_parameters(remove_duplicate=False))
        plain = {_strip(name): name for name in given} | {name: name for name in given}
        also: dict[str, list[str]] = {name: [name] for name in self.rows}
        for alias, name in self._aliases.items():
            also[name].append(alias)
        first = next(iter(self.rows), "")
        prefixes = dict.fromkeys(
            ["", *(p[: -len(n)] for n in also.get(first, []) for p in plain if p.endswith("." + n))]
        )
        matches = []
        for prefix in prefixes:
            names = {
                name: next((plain[prefix + n] for n in also[name] if prefix + n in plain), None)
                for name in self.rows
            }
            matches.append({name: given[n] for name, n in names.items() if n is not None})
        most = max(matches, key=len)
        if len(most) < len(self.rows):
            missing = [name for name in self.rows if name not in most]
            raise InputError(
                f"the model given must be the one parametrized, or a wrapper of it: {len(missing)} of {len(self.rows)} parameters are not in {type(model).__name__}, the first is {missing[0]}."
            )
        whole = [m for m in matches if len(m) == len(self.rows)]
        known = {id(p) for inner in self._models for p in inner.parameters()}
        own = [m for m in whole if all(id(p) in known for p in m.values())]
        different = {tuple(id(p) for p in m.values()): m for m in own or whole}
        if len(different) > 1:
            inside = [
                prefix.rstrip(".") or "itself"
                for prefix, m in zip(prefixes, matches, strict=True)
                if len(m) == len(self.rows)
            ]
            raise InputError(
                f"which of the copies in {type(model).__name__} is meant cannot be told: {', '.join(inside)}. Pass that one as model=."
            )
        return next(iter(different.values()), {})

    def apply(self, model: nn.Module) -> Parametrization:
        """Rescale a model's own draw to the right start, once, in place. The global RNG is not touched.

        Raises:
            StructureError: the law the weights were drawn from cannot be told; nothing was changed.
        """
        confirm(model, self._numbers)
        laws = self._measure(model, strict=True)
        for name, p in self.named_parameters(model).items():
            row = self.rows[name]
            if row.rescale not in (1.0, None) and name in laws:
                wide = p.detach().to(torch.promote_types(p.dtype, torch.float32))
                with torch.no_grad():
                    p.copy_(scaled(wide, row.rescale, row.offset))
        self._models, self._applied = [model], True
        return self

    def prove(self, model: nn.Module, base: nn.Module, optimizer: Any = None, **hyper: Any) -> Proof:
        """Try the plan by one step, as `parametrize` does; `p.proof` is the result, and nothing of either model changes.

        Args:
            model: the parametrized model as it starts training: after `p.apply`, or as `parametrize` left it.
            base: the base, with its own start.
            optimizer: a class. One step of it, built by `p.optimizer`, is taken on copies in place of the sums over gradients.
            hyper: the optimizer's hyperparameters, `lr` among them.
        """
        rescaled = self._applied or not any(m is model for m in self._models)
        steps = None
        if optimizer is not None:
            other = copy.copy(self)
            other.notes, other._models, other._families = list(self.notes), [], dict(self._families)
            other._exempt, other._decayed = set(), set()
            steps = proof.one_step(other, optimizer, hyper)
        self.proof = proof.prove(self, self._trial, model, base, rescaled=rescaled, steps=steps)
        self.notes += [n for n in proof.report(self.proof, strict=False) if n not in self.notes]
        return self.proof

    def on(self, model: nn.Module) -> Parametrization:
        """The same numbers for another draw of the same model: it is rescaled by the laws found before, not measured again."""
        for name, p in self.named_parameters(model).items():
            row = self.rows[name]
            if row.rescale not in (1.0, None):
                with torch.no_grad():
                    p.copy_(
                        scaled(
                            p.detach().to(torch.promote_types(p.dtype, torch.float32)),
                            row.rescale,
                            row.offset,
                        )
                    )
        other = copy.copy(self)
        other.rows, other.notes, other._models = dict(self.rows), list(self.notes), [model]
        other._families, other._exempt, other._decayed = dict(self._families), set(), set()
        return other

    def _measure(self, model: nn.Module, *, strict: bool) -> dict[str, float]:
        """Each parameter's init law as a ratio to base, and from it `rescale`."""
        params = self.named_parameters(model)
        if any(p.is_meta for p in params.values()):
            raise InputError(
                "a model on the meta device has no weights to rescale: materialise and initialise it first."
            )
        broken = [
            n for n, p in params.items() if adjustable(p) and not bool(torch.isfinite(p.detach()).all())
        ]
        if broken and strict:
            raise InputError(
                f"the weights must be finite: {broken[0]} holds nan or inf ({len(broken)} parameters do). Initialise the model first."
            )
        laws, problems = measure(params, self.rows, self._draws, self.scheme)
        if problems and strict:
            raise LawError(
                "\n".join(
                    [
                        "the law the weights were drawn from must be known to reach the right start:",
                        *(f"  - {p}" for p in problems[:8]),
                        "Trained weights have no init law: resume with Parametrization.from_json, or pass apply=False.",
                    ]
                )
            )
        for name, (law, value) in laws.items():
            row = self.rows[name]
            rescale = row.init / value  # docs/theory.md, equation (19)
            self.rows[name] = dataclasses.replace(
                row, rescale=1.0 if math.isclose(rescale, 1.0, rel_tol=1e-12) else rescale, law=law
            )
        return {name: value for name, (_, value) in laws.items()}

    # -- optimizers --------------------------------------------------------------------------------------------------

    def factors(self, cls: Any, **hyper: Any) -> dict[str, dict[str, float]]:
        """{name: {"lr", "weight_decay", "eps"}} to multiply the base's hyperparameters by.

        Args:
            cls: optimizer class.
            hyper: flags that matter to the law, such as adjust_lr_fn or decoupled_weight_decay. An optimizer that is
                not torch's own is tried at `lr` and the rest of them.
        """
        return self._by_family(family(cls, hyper), hyper)

    def _by_family(self, fam: rules.Family, hyper: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        out = {}
        for name, row in self.rows.items():
            f = self._factors(row, fam, hyper)
            out[name] = dict(lr=f.lr, weight_decay=f.weight_decay, eps=f.eps) | dict(row.override)
        return out

    def _factors(self, row: Row, fam: rules.Family, hyper: Mapping[str, Any]) -> rules.Factors:
        if self.scheme.identity:
            return rules.Factors()
        if fam.rate != "spectral":
            return rules.factors(fam, row.scales)
        if len(row.shape) != 2:
            return rules.factors(dataclasses.replace(fam, rate="u"), row.scales)
        fn = hyper.get("adjust_lr_fn")
        adjust = rules.muon_adjust(row.base_shape, fn) / rules.muon_adjust(row.shape, fn)
        return rules.factors(fam, row.scales, m_in=row.m_in, m_out=row.m_out, adjust=adjust)

    def _chosen(self, only: str | Callable[[Row], bool] | None) -> list[str]:
        if only is None:
            return list(self.rows)
        if callable(only):
            return [name for name, row in self.rows.items() if only(row)]
        if only in ("matrices", "rest"):
            return [name for name, row in self.rows.items() if row.muon == (only == "matrices")]
        chosen = [name for name in self.rows if fnmatch.fnmatchcase(name, only)]
        if not chosen:
            raise InputError(
                f"only must be 'matrices', 'rest', a pattern of parameter names or a function of a row: {only!r} matches none of {len(self.rows)} names."
            )
        return chosen

    def _undecayed(self, no_decay: NoDecay) -> set[str]:
        """The names that `no_decay` exempts."""
        if no_decay is None:
            return set()
        if callable(no_decay):
            return {name for name, row in self.rows.items() if no_decay(row)}
        patterns = [no_decay] if isinstance(no_decay, str) else list(no_decay)
        called = {name: [name, *(a for a, n in self._aliases.items() if n == name)] for name in self.rows}
        chosen: set[str] = set()
        problems = []
        for pattern in patterns:
            if not isinstance(pattern, str):
                problems.append(f"{pattern!r} is no pattern of names")
                continue
            found = {
                name for name, also in called.items() if any(fnmatch.fnmatchcase(a, pattern) for a in also)
            }
            if not found:
                problems.append(
                    f"{pattern!r} matches no parameter; names look like {', '.join(list(self.rows)[:3])}"
                )
            chosen |= found
        if problems:
            raise faults(
                "no_decay must be a pattern of parameter names, a list of them or a function of a row:",
                problems,
            )
        return chosen

    def groups(
        self,
        cls: Any,
        lr: float,
        *,
        model: nn.Module | None = None,
        only: str | Callable[[Row], bool] | None = None,
        no_decay: NoDecay = None,
        **hyper: Any,
    ) -> list[dict[str, Any]]:
        """Parameter groups with the factors multiplied in; parameters with the same numbers share a group.

        Args:
            cls: optimizer class the groups are for.
            lr: base learning rate, independent of width and depth.
            model: the wrapped model, where the parameters to train are no longer those that were parametrized.
            only: "matrices" (hidden, 2-D: what Muon takes), "rest", a name pattern or a function of a row.
            no_decay: parameters with weight decay 0: a name pattern, a list of them or a function of a row, such as
                `["*.bias", "*norm*"]` or `lambda row: len(row.shape) < 2`.
            hyper: the optimizer's other hyperparameters, as for the base.
        """
        _check_rate(lr)
        exempt = self._undecayed(no_decay)
        fam = self._families[cls] = family(cls, hyper, float(lr))
        params = self.named_parameters(model)
        if only is None:
            self._refuse_strangers(model, params)
        all_factors = self._by_family(fam, hyper)
        decay, eps = (
            hyper.get("weight_decay", default(cls, "weight_decay")),
            hyper.get("eps", default(cls, "eps")),
        )
        if fam.decay == "coupled" and decay and not self.scheme.identity and COUPLED not in self.notes:
            self.notes.append(COUPLED)
        merged: dict[tuple[float, ...], list[nn.Parameter]] = {}
        numbers: dict[tuple[float, ...], dict[str, Any]] = {}
        for name in self._chosen(only):
            p, f, row = params[name], all_factors[name], self.rows[name]
            if not p.requires_grad:
                continue
            if fam.rate == "spectral" and p.ndim != 2:
                raise OptimizerError(
                    f"{fam.name} trains matrices only: {name} has {p.ndim} dimensions. Pass only='matrices' here and p.optimizer(torch.optim.AdamW, ..., only='rest') beside it."
                )
            if name in exempt:
                f = f | {"weight_decay": 0.0}
            (self._exempt if name in exempt else self._decayed).add(name)
            if (
                row.offset
                and row.init != 1
                and decay
                and f["weight_decay"]
                and "weight_decay" not in dict(row.override)
            ):
                raise OptimizerError(
                    f"{name} is a gain stored as 1 + w, folded to {row.init:.4g}: decay would pull it back to 1. "
                    f"Exempt it: no_decay='{name}' here, or overrides={{'{name}': {{'weight_decay': 0}}}} in parametrize."
                )
            group: dict[str, Any] = {"lr": lr * f["lr"]}
            if isinstance(decay, int | float):
                group["weight_decay"] = decay * f["weight_decay"]
            if isinstance(eps, int | float) and fam.eps:
                group["eps"] = eps * f["eps"]
            key = tuple(float(f"{v:.12e}") for v in group.values())
            merged.setdefault(key, []).append(p)
            numbers.setdefault(key, group)
        if not merged:
            raise InputError(
                "no trainable parameter is left for this optimizer: all are frozen or excluded by only=."
            )
        if model is not None:
            self._remember(model)
        return [{"params": ps, **numbers[key]} for key, ps in merged.items()]

    def _refuse_strangers(self, model: nn.Module | None, params: Mapping[str, nn.Parameter]) -> None:
        """Parameters that came after parametrize (a new head, an adapter) have no factors, and would silently not be trained."""
        known = {id(p) for p in params.values()}
        new = [
            name
            for name, p in (self._models[0] if model is None else model).named_parameters()
            if p.requires_grad and id(p) not in known
        ]
        if new:
            raise InputError(
                f"every trainable parameter must have been parametrized: {len(new)} have no factors, the first is {new[0]}. "
                "Parametrize the model with them, freeze them, or choose with only= and train them in an optimizer of their own."
            )

    def optimizer(
        self,
        cls: Any,
        lr: float,
        *,
        model: nn.Module | None = None,
        only: str | Callable[[Row], bool] | None = None,
        no_decay: NoDecay = None,
        **hyper: Any,
    ) -> Any:
        """The optimizer, built on `groups`."""
        groups = self.groups(cls, lr, model=model, only=only, no_decay=no_decay, **hyper)
        optimizer = cls(groups, lr=lr, **hyper)
        if (
            hyper.get("initial_accumulator_value") and not self.scheme.identity
        ):  # Adagrad's state starts in units of g^2
            for name, p in self.named_parameters(model).items():
                if p in optimizer.state and "sum" in optimizer.state[p]:
                    optimizer.state[p]["sum"] *= self.rows[name].s ** 2
        return optimizer

    def lrs(self, optimizer: Any, value: float) -> list[float]:
        """`value`, a base learning rate, as one rate per group, for schedulers that take absolute rates."""
        return [value * f["lr"] for f in self._group_factors(_innermost(optimizer))]

    def _names(self) -> dict[int, str]:
        """The name of each parameter, by identity, of all the models this parametrization has met."""
        names: dict[int, str] = {}
        for model in self._models:
            names |= {id(p): name for name, p in self.named_parameters(model).items()}
        return names

    def _group_factors(self, optimizer: Any) -> list[dict[str, float]]:
        """The factors each group of an optimizer should carry.

        Raises:
            OptimizerError: a group mixes parameters with different factors, or holds unknown ones.
        """
        names = self._names()
        flags = dict(optimizer.defaults)
        fam = self._families.get(type(optimizer)) or family(type(optimizer), flags)
        expected = self._by_family(fam, flags)
        result = []
        for i, group in enumerate(optimizer.param_groups):
            unknown = [p for p in group["params"] if id(p) not in names]
            if unknown:
                raise OptimizerError(
                    f"group {i} holds {len(unknown)} parameters that are not of the parametrized model. Build it with p.groups(..., model=the wrapped model)."
                )
            found = [(names[id(p)], expected[names[id(p)]]) for p in group["params"]]
            for name, f in found:
                for key, value in f.items():
                    if (
                        not math.isclose(value, found[0][1][key], rel_tol=1e-9)
                        and (key != "eps" or "eps" in group)
                        and (key != "weight_decay" or group.get("weight_decay"))
                    ):
                        raise OptimizerError(
                            f"group {i} mixes parameters whose {key} factors differ: {found[0][0]} {found[0][1][key]:.6g}, {name} {value:.6g}. Something regrouped the parameters: hand over p.optimizer(...) or p.groups(...)."
                        )
            result.append(found[0][1] if found else dict(lr=1.0, weight_decay=1.0, eps=1.0))
        return result

    def check(self, optimizer: Any) -> None:
        """Raise if a scheduler, a trainer or a reload has erased the factors.

        Rates may have moved, but together: lr / factor must be one number over all groups. At lr = 0 (the first step
        of a warmup) `initial_lr` is compared.

        Raises:
            OptimizerError: with the first groups that disagree.
        """
        optimizer = _innermost(optimizer)
        expected = self._group_factors(optimizer)
        undecayed = self._check_exempt(optimizer)
        for key in ("lr", "weight_decay", "eps"):
            bases: list[tuple[int, float]] = []
            for i, (group, f) in enumerate(zip(optimizer.param_groups, expected, strict=True)):
                if key not in group or (key == "weight_decay" and i in undecayed):
                    continue
                value = float(group[key])
                if key == "lr" and all(float(g["lr"]) == 0 for g in optimizer.param_groups):
                    value = float(group.get("initial_lr", value))
                if f[key] == 0:
                    if value != 0:
                        raise OptimizerError(
                            f"{key} of group {i} must be 0 (an override says so): it is {value:.6g}."
                        )
                    continue
                bases.append((i, value / f[key]))
            near = 1e-5 if any(isinstance(g.get(key), Tensor) for g in optimizer.param_groups) else 1e-7
            for i, x in bases[1:]:
                if not math.isclose(x, bases[0][1], rel_tol=near, abs_tol=0.0):
                    j, y = bases[0]
                    raise OptimizerError(
                        f"{key} divided by its factor must be one number over all groups: group {j} gives {y:.6g}, group {i} gives {x:.6g}. "
                        + (
                            _schedule_advice(optimizer)
                            if key == "lr"
                            else "A trainer or a reload has erased the factors: rebuild with p.optimizer."
                        )
                    )

    def _check_exempt(self, optimizer: Any) -> set[int]:
        """The groups that no_decay leaves without decay.

        Raises:
            OptimizerError: parameters that are always exempt are decayed.
        """
        names, found = self._names(), set[int]()
        for i, group in enumerate(optimizer.param_groups):
            own = {names[id(p)] for p in group["params"]}
            decay = float(group.get("weight_decay") or 0.0)
            always = sorted(own & self._exempt - self._decayed)
            if decay and always:
                raise OptimizerError(
                    f"weight_decay of {always[0]} must be 0 (no_decay says so): group {i} has {decay:.6g}. "
                    "Something regrouped the parameters: hand over p.optimizer(...) or p.groups(...)."
                )
            if own and own <= self._exempt and not decay:
                found.add(i)
        return found

    def clip_grad_norm_(self, max_norm: float, model: nn.Module | None = None) -> Tensor:
        """Clip gradients by a norm that means the same at every size: |g|^2 = sum_p (u_p / s_p) |g_p|^2
        (docs/theory.md, equation (8)).

        At base size this is `torch.nn.utils.clip_grad_norm_`.

        Args:
            max_norm: as tuned on the base.

        Returns:
            the norm before clipping.
        """
        params = [
            (p, self.rows[name]) for name, p in self.named_parameters(model).items() if p.grad is not None
        ]
        if not params:
            return torch.tensor(0.0)
        grads = [p.grad for p, _ in params if p.grad is not None]
        weights = [1.0 if self.scheme.identity else math.sqrt(row.u / row.s) for _, row in params]
        norms = [torch.linalg.vector_norm(g) for g in grads]
        norms = [n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]  # type: ignore[attr-defined]
        total = torch.linalg.vector_norm(
            torch.stack([n.to(norms[0].device) * w for n, w in zip(norms, weights, strict=True)])
        )
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for g in grads:
            g.mul_(
                factor.to(device=g.device, dtype=g.dtype) if not hasattr(g, "full_tensor") else float(factor)
            )
        return total

    # -- save and compare ------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Everything a resume needs, to be kept with a checkpoint."""
        data = dict(
            format=FORMAT,
            scheme=dataclasses.asdict(self.scheme),
            gamma0=self.gamma0,
            width=self.width,
            depth=self.depth,
            branches=[dataclasses.asdict(b) for b in self.branches],
            rows=[dataclasses.asdict(r) for r in self.rows.values()],
            aliases=self._aliases,
            notes=self.notes,
        )
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Parametrization:
        """A parametrization as it was saved. It has no model: pass `model=` to `groups` and the rest."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise InputError(
                    f"format must be {FORMAT}: got {data['format']!r}. Read it with the version of trimtab that wrote it."
                )
            rows = {r["name"]: row_from(r) for r in data["rows"]}
            branches = [
                Branch(b["name"], b["kind"], tuple(b["tail"]), tuple(b["parameters"]), b["stack"])
                for b in data["branches"]
            ]
            p = cls(rows, branches, data["depth"], Scheme(**data["scheme"]), data["gamma0"], data["width"])
            p.notes, p._aliases = list(data["notes"]), dict(data["aliases"])
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise InputError(
                f"the text must be what Parametrization.to_json wrote: {type(error).__name__}: {error}."
            ) from error
        return p

    def differences(self, other: Parametrization) -> list[str]:
        """What a resume would change: one line for each number that differs, none when all agree."""
        found = []
        for key in ("scheme", "gamma0", "depth"):
            if getattr(self, key) != getattr(other, key):
                found.append(f"{key}: {getattr(self, key)} here, {getattr(other, key)} there")
        for name in self.rows.keys() ^ other.rows.keys():
            found.append(f"{name}: only {'here' if name in self.rows else 'there'}")
        for name in self.rows.keys() & other.rows.keys():
            a, b = self.rows[name], other.rows[name]
            for key in ("role", "place", "shape", "init", "u", "s", "override"):
                x, y = getattr(a, key), getattr(b, key)
                same = math.isclose(x, y, rel_tol=1e-9) if isinstance(x, float) else x == y
                if not same:
                    found.append(f"{name}.{key}: {x} here, {y} there")
        return sorted(found)


_PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def _strip(name: str) -> str:
    """A wrapped parameter's own name.

    >>> _strip("_orig_mod.module.layers.0._checkpoint_wrapped_module.weight")
    'layers.0.weight'
    """
    for prefix in _PREFIXES:
        name = name.replace("." + prefix, ".")
        while name.startswith(prefix):
            name = name[len(prefix) :]
    return name


def _innermost(optimizer: Any) -> Any:
    """The optimizer inside a trainer's wrapper (Accelerate's, and so Hugging Face's)."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def _floor(optimizer: Any) -> float | None:
    """The floor, relative to the base's rate, that a schedule holds all groups to: lr = c initial_lr + d in each, d > 0."""
    groups = [(float(g["initial_lr"]), float(g["lr"])) for g in optimizer.param_groups if "initial_lr" in g]
    base = float(optimizer.defaults.get("lr") or 0.0)
    (x0, y0), (x1, y1) = min(groups, default=(0.0, 0.0)), max(groups, default=(0.0, 0.0))
    if x0 == x1 or not base:
        return None
    c = (y1 - y0) / (x1 - x0)
    d = y0 - c * x0
    fits = all(math.isclose(y, c * x + d, rel_tol=1e-6) for x, y in groups)
    return d / (1 - c) / base if fits and 0 <= c < 1 - 1e-9 and d > 0 else None


def _schedule_advice(optimizer: Any) -> str:
    """What to do about a schedule in absolute rates, as lines that run."""
    floor = _floor(optimizer)
    f, rest = ("f", "(1 - f)") if floor is None else (f"{floor:.6g}", f"{1 - floor:.6g}")
    line = f"torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: {f} + {rest} * (1 + math.cos(math.pi * t / T_max)) / 2)"
    return (
        "A schedule with an absolute peak or floor, a trainer or a reload has erased the factors. "
        "Build the optimizer anew with p.optimizer. Then, for OneCycleLR(max_lr=x), CyclicLR(base_lr=x, max_lr=y) and "
        "ReduceLROnPlateau(min_lr=x), pass p.lrs(optimizer, x) in place of x. CosineAnnealingLR(eta_min=x) takes one "
        f"number for all groups: use {line} in its place"
        + (
            ", with f = x / lr, the base's."
            if floor is None
            else f", a floor of {floor:.6g} times the rate in each group."
        )
    )


def _check_rate(lr: Any) -> None:
    number = float(lr) if isinstance(lr, int | float | Tensor) and not isinstance(lr, bool) else math.nan
    if not 0 <= number < math.inf:
        raise InputError(f"lr must be a finite number >= 0, the base's learning rate: got {lr!r}.")
