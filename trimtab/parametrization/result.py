"""The parametrization of one model: numbers that act on it, and nothing else.

A `Parametrization` holds the table of what was found; it rescales the model's parameters once, in place, and
gives the parameter groups for an optimizer (`groups`), size-invariant clipping (`clipping`) and a check that
nothing has erased the factors. The model keeps its code, its modules and its state dict keys. See
docs/theory.md, equations (5), (7), (8) and (19).
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import InputError, LawError, OptimizerError, together
from trimtab.parametrization import saving
from trimtab.parametrization.comparison.meta_buffers import confirm
from trimtab.parametrization.exports.catalogue import check_tool, write_export
from trimtab.parametrization.exports.record import Export, Settings
from trimtab.parametrization.horizons.decay import Decay, as_decay
from trimtab.parametrization.horizons.horizon import Horizon
from trimtab.parametrization.initialization.base_draws import Draw
from trimtab.parametrization.initialization.init_measurement import measure
from trimtab.parametrization.initialization.own_draws import never_rescaled, rms
from trimtab.parametrization.optimizers import groups as grouping
from trimtab.parametrization.optimizers.clipping import clip
from trimtab.parametrization.optimizers.factors import Carry
from trimtab.parametrization.optimizers.groups import Factors, NoDecay, Only
from trimtab.parametrization.optimizers.lookup import default, family, law_of
from trimtab.parametrization.optimizers.wrapped import parameters_inside
from trimtab.parametrization.parameters import Branch, Row
from trimtab.parametrization.proof import trial as proofs
from trimtab.parametrization.proof.rows import Proof
from trimtab.parametrization.proof.starting import Start
from trimtab.parametrization.rules import Scheme
from trimtab.parametrization.table import render, rich_table
from trimtab.structure.proofs import scaled
from trimtab.structure.trace import adjustable

COUPLED = (
    "coupled L2 inside a normalised optimizer keeps either its time scale or its balance with the gradient "
    "over size, not both; AdamW keeps lr x wd."
)

NEVER = (
    "the model must start from the plan's numbers: {name} and all others that the plan rescales have the "
    "size of the model's own draw (a fresh instance of it, or reset_parameters after parametrize)."
)


class Parametrization:
    """What `parametrize` found and what follows from it. Rows are read by name: `p["head.weight"].u`.

    Args:
        rows: what each parameter is and gets.
        depth: m_L: a float when all stacks grow alike, else {stack: m_L}.
        width: m_N, the width ratio that most parameters share.
        aliases: second names of tied parameters.
        draws: what is needed to judge a fresh draw of the weights. None for a plan that was read from JSON:
            it resumes training and cannot initialise (`apply` says so).
        buffers: one-element buffers that the meta device hid, as they were planned with.
        model: where the parameters are; None for a plan that was read from JSON: pass `model=` to `groups`
            and the rest.
        horizon, decay: batch and length, and what weight decay keeps, where `groups` is not told.
    """

    def __init__(
        self,
        *,
        rows: dict[str, Row],
        branches: list[Branch],
        depth: float | dict[str, float],
        scheme: Scheme,
        gamma0: float,
        width: float,
        notes: list[str],
        aliases: Mapping[str, str],
        draws: Mapping[str, Draw] | None = None,
        buffers: Mapping[str, float] | None = None,
        model: nn.Module | None = None,
        trial: proofs.Trial | None = None,
        horizon: Horizon | None = None,
        decay: str | Decay = "product",
    ):
        self.rows, self.branches, self.depth = rows, branches, depth
        self.scheme, self.gamma0, self.width, self.notes = scheme, gamma0, width, notes
        self._aliases, self._draws, self._buffers = dict(aliases), draws, dict(buffers or {})
        self._models: list[nn.Module] = [] if model is None else [model]  # the model, then its wrappers
        self.horizon, self.decay = horizon, as_decay(decay)  # what groups were made with last
        self.proof = Proof(reason="nothing was tried yet")
        self._trial = trial
        self._start: Start | None = None  # the pair of models that the plan was tried on
        self._tried: set[Any] = set()  # optimizer classes whose step was tried
        self._applied = False  # the model's numbers are those it trains from
        self._own: dict[str, float] = {}  # rms of the draws that were rescaled, before
        self._carries: dict[Any, Carry] = {}  # of the optimizers whose groups were made
        self._said: dict[Any, list[str]] = {}  # the notes of each of these
        self._exempt: set[str] = set()  # names that some groups do not decay, and names that some do
        self._decayed: set[str] = set()

    def __getitem__(self, name: str) -> Row:
        name = self._aliases.get(name, name)
        if name not in self.rows:
            near = difflib.get_close_matches(name, self.rows, n=1)
            raise KeyError(f"no parameter {name!r}{f', nearest {near[0]!r}' if near else ''}")
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
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

    # -- the model -------------------------------------------------------------------------------------------

    def named_parameters(self, model: nn.Module | None = None) -> dict[str, nn.Parameter]:
        """This parametrization's parameters inside `model`, wrappers and prefixes looked through.

        Args:
            model: the model itself, or a wrapped one (DDP, FSDP2, compile, an EMA copy). Default: the one
                that was parametrized.
        """
        if model is None:
            if not self._models:
                raise InputError("this parametrization was read from JSON and has no model: pass model=.")
            model = self._models[0]
        return parameters_inside(model, self.rows, self._aliases, self._models)

    def apply(self, model: nn.Module) -> Parametrization:
        """Rescale a model's own draw to the right start, once, in place. The global RNG is not touched.

        Raises:
            StructureError: the law the weights were drawn from is ambiguous; nothing was changed.
            InputError: this plan was read from JSON, or the model has no weights.
        """
        confirm(model, self._buffers)
        self.measure(model, strict=True)
        self._rescale(model)
        self._models, self._applied = [model], True
        return self

    def prove(self, model: nn.Module, base: nn.Module, optimizer: Any = None, **hyper: Any) -> Proof:
        """Try the plan by one step, as `parametrize` does. `p.proof` is the result; neither model changes.

        Args:
            model: the parametrized model as it starts training: after `p.apply`, or as `parametrize` left it.
            base: the base, with its own start.
            optimizer: a class. One step of it, built by `p.optimizer`, is taken on copies in place of the
                sums over gradients.
            hyper: the optimizer's hyperparameters, `lr` among them.
        """
        steps = None
        if optimizer is not None:
            other = copy.copy(self)
            other.notes, other._models, other._carries = list(self.notes), [], dict(self._carries)
            other._said = dict(self._said)
            other._exempt, other._decayed, other._start = set(), set(), None
            steps = proofs.one_step(other, optimizer, hyper)
        rescaled = self._applied or not any(m is model for m in self._models)
        self.try_one_step(model, base, rescaled=rescaled, steps=steps)
        return self.proof

    def try_one_step(
        self,
        model: nn.Module,
        base: nn.Module,
        *,
        rescaled: bool,
        strict: bool = False,
        steps: proofs.Steps | None = None,
    ) -> None:
        """Fill `p.proof`, with a warning and a note where it fails; `rescaled`: the model starts as it is."""
        self.proof = proofs.prove(self, self._trial, model, base, rescaled=rescaled, steps=steps)
        self._start = Start.of(model, base)
        self.notes += [n for n in proofs.report(self.proof, strict=strict) if n not in self.notes]

    @property
    def has_experts(self) -> bool:
        """A mixture here has another number of experts than in the base."""
        return self._trial is not None and self._trial.experts

    def proof_of(self, model: nn.Module, base: nn.Module) -> Proof:
        """The proof of a plan that is not applied; nothing is kept of it."""
        return proofs.prove(self, self._trial, model, base, rescaled=False)

    def with_rows(self, rows: dict[str, Row]) -> Parametrization:
        """The same parametrization with other numbers."""
        other = copy.copy(self)
        other.rows, other.notes, other._said = dict(rows), list(self.notes), dict(self._said)
        return other

    def on(self, model: nn.Module) -> Parametrization:
        """The same numbers for another draw of the model, rescaled by the laws found before."""
        self._rescale(model)
        other = copy.copy(self)
        other.rows, other.notes, other._models = dict(self.rows), list(self.notes), [model]
        other._carries, other._exempt, other._decayed = dict(self._carries), set(), set()
        other._said = dict(self._said)
        return other

    def _rescale(self, model: nn.Module) -> None:
        for name, p in self.named_parameters(model).items():
            row = self.rows[name]
            if row.rescale not in (1.0, None):
                wide = p.detach().to(torch.promote_types(p.dtype, torch.float32))
                if name not in self._own:
                    self._own[name] = rms(wide)
                with torch.no_grad():
                    p.copy_(scaled(wide, row.rescale, row.offset))

    def measure(self, model: nn.Module, *, strict: bool) -> None:
        """Find the law of a model's weights, and so each row's `rescale` (docs/theory.md, equation (19)).

        Args:
            strict: raise where the law is ambiguous; otherwise such rows keep `rescale` None.
        """
        if self._draws is None:
            raise InputError(
                "a parametrization read from JSON resumes training, it does not initialise: "
                "build it with parametrize to apply it."
            )
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
                f"the weights must be finite: {broken[0]} holds nan or inf ({len(broken)} parameters do). "
                "Initialise the model first."
            )
        laws, problems = measure(params, self.rows, self._draws, self.scheme)
        if problems and strict:
            law = "the law the weights were drawn from must be known to reach the right start:"
            cure = (
                "Trained weights have no init law: resume with Parametrization.from_json, or pass "
                "apply=False."
            )
            text = "\n".join([law, *(f"  - {p}" for p in problems[:8]), cure])
            raise LawError(text, together([p.proposals for p in problems]))
        for name, (law, value) in laws.items():
            row = self.rows[name]
            rescale = row.init * dict(row.multipliers).get("init", 1.0) / value
            rescale = 1.0 if math.isclose(rescale, 1.0, rel_tol=1e-12) else rescale
            self.rows[name] = dataclasses.replace(row, rescale=rescale, law=law)

    # -- optimizers ------------------------------------------------------------------------------------------

    def factors(
        self, cls: Any, *, horizon: Horizon | None = None, decay: str | Decay | None = None, **hyper: Any
    ) -> Factors:
        """{name: {"lr", "weight_decay", "eps"}} to multiply the base's hyperparameters by.

        Args:
            cls: optimizer class.
            hyper: flags that matter to the law, such as adjust_lr_fn or decoupled_weight_decay. An optimizer
                that is not torch's own is tried at `lr` and the rest of them.
            horizon, decay: as in `groups`.
        """
        carry = Carry.of(cls, family(cls, hyper), hyper, horizon or self.horizon, decay or self.decay)
        return self._table(carry, hyper)

    def _table(self, carry: Carry, hyper: Mapping[str, Any]) -> Factors:
        return carry.table(grouping.factor_table(self.rows, self.scheme, carry.family), self.rows)

    def groups(
        self,
        cls: Any,
        lr: float,
        *,
        model: nn.Module | None = None,
        only: Only = None,
        no_decay: NoDecay = None,
        horizon: Horizon | None = None,
        decay: str | Decay | None = None,
        **hyper: Any,
    ) -> list[dict[str, Any]]:
        """Parameter groups with the factors multiplied in; parameters with the same numbers share a group.

        Args:
            cls: optimizer class the groups are for.
            lr: base learning rate, independent of width, depth, batch and length.
            model: the wrapped model, where the parameters to train are no longer those that were
                parametrized.
            only: "matrices" (hidden, 2-D: what Muon takes), "rest", a name pattern or a function of a row.
            no_decay: parameters with weight decay 0: a name pattern, a list of them or a function of a row,
                such as `["*.bias", "*norm*"]` or `lambda row: len(row.shape) < 2`.
            horizon: batch and length over the base's; lr, decay, eps, betas and momentum follow its rule.
                Default: what was given last, or saved.
            decay: what weight decay keeps: "product" (lr x wd), "root", "value" (wd itself), "tokens" or
                "epochs" (the timescale 1/(lr wd)). Default: what was given last or saved; at first "product".
            hyper: the optimizer's other hyperparameters, as for the base.
        """
        grouping.check_rate(lr)
        exempt = grouping.exempt(self.rows, self._aliases, no_decay)
        fam = family(cls, hyper, float(lr))
        carry = Carry.of(cls, fam, hyper, horizon or self.horizon, decay or self.decay)
        params = self.named_parameters(model)
        if only is None:
            self._refuse_strangers(model, params)
        factors = self._table(carry, hyper)
        coupled = fam.decay == "coupled" and carry.hyper.get("weight_decay")
        notes = [COUPLED] if coupled and not self.scheme.identity else []
        notes += carry.notes(float(lr), grown=self._grown)
        chosen = {name: params[name] for name in grouping.choose(self.rows, only)}
        for name in chosen:
            if not params[name].requires_grad:
                continue
            (self._exempt if name in exempt else self._decayed).add(name)
            if name in exempt:
                factors[name] |= {"weight_decay": 0.0}
        trained = [name for name in chosen if params[name].requires_grad]
        numbers = grouping.numbers_by_name(cls, lr, trained, self.rows, factors, fam, hyper)
        made = grouping.make_groups(chosen, numbers, carry.memories)
        self._carries[cls], self.horizon, self.decay = carry, horizon or self.horizon, carry.decay
        before = self._said.get(cls, [])
        self.notes[:] = [note for note in self.notes if note not in before]
        self._said[cls] = [note for note in notes if note not in self.notes]
        self.notes += self._said[cls]
        if model is not None and not any(known is model for known in self._models):
            self._models.append(model)
        return made

    @property
    def _grown(self) -> bool:
        depths = self.depth.values() if isinstance(self.depth, dict) else [self.depth]
        return not self.scheme.identity and (self.width != 1 or any(m != 1 for m in depths))

    def _refuse_strangers(self, model: nn.Module | None, params: Mapping[str, nn.Parameter]) -> None:
        """Parameters added after parametrize (a head, an adapter) have no factors: refuse them."""
        known = {id(p) for p in params.values()}
        named = (self._models[0] if model is None else model).named_parameters()
        new = [name for name, p in named if p.requires_grad and id(p) not in known]
        if new:
            raise InputError(
                f"every trainable parameter must have been parametrized: {len(new)} have no factors, the "
                f"first is {new[0]}. Parametrize the model with them, freeze them, or choose with only= and "
                "train them in an optimizer of their own."
            )

    def optimizer(
        self,
        cls: Any,
        lr: float,
        *,
        model: nn.Module | None = None,
        only: Only = None,
        no_decay: NoDecay = None,
        horizon: Horizon | None = None,
        decay: str | Decay | None = None,
        **hyper: Any,
    ) -> Any:
        """The optimizer, built on `groups`."""
        groups = self.groups(
            cls, lr, model=model, only=only, no_decay=no_decay, horizon=horizon, decay=decay, **hyper
        )
        if name := never_rescaled(self.named_parameters(model), self.rows, self._own):
            said = f"{NEVER.format(name=name)} Before training: p.on(model), or load a checkpoint."
            warnings.warn(said, UserWarning, stacklevel=2)
        optimizer = cls(groups, lr=lr, **hyper)
        # Adagrad's state starts in units of g^2
        if hyper.get("initial_accumulator_value") and not self.scheme.identity:
            for name, p in self.named_parameters(model).items():
                if p in optimizer.state and "sum" in optimizer.state[p]:
                    optimizer.state[p]["sum"] *= self.rows[name].s ** 2
        self._try_unknown(cls, float(lr), only, hyper)
        return optimizer

    def _try_unknown(self, cls: Any, lr: float, only: Only, hyper: Mapping[str, Any]) -> None:
        """One step of an optimizer whose law was measured and not derived, on copies of the pair that this
        plan was tried on; p.proof is its proof where that fails."""
        if self._start is None or cls in self._tried or not law_of(cls, hyper, lr).evidence:
            return
        self._tried.add(cls)
        name = getattr(cls, "__name__", str(cls))
        if self._start.moved:
            self.notes.append(
                f"{name} is not proven by a step of its own: model or base have changed since they were "
                "compared. p.prove(model, base, optimizer=...) tries it on a fresh pair."
            )
            return
        before = self.proof
        given = {k: v for k, v in hyper.items() if k != "weight_decay"} | ({"only": only} if only else {})
        self.prove(self._start.model, self._start.base, cls, lr=lr, **given)
        if self.proof.verdict != "wrong":
            self.proof = before

    def export(
        self,
        tool: str,
        cls: Any = torch.optim.AdamW,
        lr: float | None = None,
        *,
        only: Only = None,
        no_decay: NoDecay = None,
        horizon: Horizon | None = None,
        decay: str | Decay | None = None,
        **hyper: Any,
    ) -> Export:
        """The numbers of one optimizer in another tool's words, read back before they are returned.

        Args:
            tool: "torchtitan", "deepspeed", "megatron", "optax" or "json".
            cls: optimizer class.
            lr: base learning rate; the optimizer's default where it is not given.
            only, no_decay, horizon, decay, hyper: as in `groups`.

        Returns:
            its `.data`, its `.text` to paste, what the tool cannot say (`.lost`) and the `.numbers` read
            back.

        >>> import trimtab
        >>> build = lambda n: nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, 2))
        >>> p = trimtab.parametrize(build(64), build(16), example=torch.randn(2, 4))
        >>> p.export("torchtitan", lr=1e-3).numbers["2.weight"]["lr"]
        0.00025
        """
        check_tool(tool)
        lr = float(default(cls, "lr") or 1.0) if lr is None else lr
        grouping.check_rate(lr)
        fam = family(cls, hyper, float(lr))
        carry = Carry.of(cls, fam, hyper, horizon or self.horizon, decay or self.decay)
        factors = self._table(carry, hyper)
        for name in grouping.exempt(self.rows, self._aliases, no_decay):
            factors[name] |= {"weight_decay": 0.0}
        chosen = grouping.choose(self.rows, only)
        if self._models:
            params = self.named_parameters()
            chosen = [name for name in chosen if params[name].requires_grad]
        settings = Settings(
            optimizer=cls.__name__,
            base={"lr": float(lr), **carry.hyper},
            shared=carry.memories,
            factors=factors,
            numbers=grouping.numbers_by_name(cls, float(lr), chosen, self.rows, factors, fam, hyper),
            rows=self.rows,
            aliases=self._aliases,
            scheme=self.scheme,
            width=self.width,
            depth=self.depth,
        )
        return write_export(tool, settings)

    def lrs(self, optimizer: Any, value: float) -> list[float]:
        """`value`, a base learning rate, as one rate per group, for schedulers that take absolute rates."""
        return [value * f["lr"] for f in self._factors_by_group(grouping.innermost(optimizer))]

    def check(self, optimizer: Any) -> None:
        """Raise if a scheduler, a trainer or a reload has erased the factors.

        Rates may have moved, but together: lr / factor must be one number over all groups. At lr = 0 (the
        first step of a warmup) `initial_lr` is compared. And the weights must not be a fresh draw that was
        never rescaled (another instance of the model, or `reset_parameters`).

        Raises:
            OptimizerError: with the first groups that disagree.
        """
        optimizer = grouping.innermost(optimizer)
        expected = self._factors_by_group(optimizer)
        undecayed = grouping.groups_without_decay(optimizer, self._names(), self._exempt, self._decayed)
        grouping.check_factors(optimizer, expected, undecayed)
        if (carry := self._carries.get(type(optimizer))) is not None:
            carry.check(optimizer)
        names = self._names()
        held = [q for group in optimizer.param_groups for q in group["params"] if id(q) in names]
        if name := never_rescaled({names[id(q)]: q for q in held}, self.rows, self._own):
            raise OptimizerError(
                f"{NEVER.format(name=name)} Rescale it with p.on(model), and go on with the plan it returns."
            )

    def _names(self) -> dict[int, str]:
        """The name of each parameter, by identity, of all the models this parametrization has met."""
        return {id(p): name for model in self._models for name, p in self.named_parameters(model).items()}

    def _factors_by_group(self, optimizer: Any) -> list[dict[str, float]]:
        flags = dict(optimizer.defaults)
        carry = self._carries.get(type(optimizer))
        if carry is None:
            cls = type(optimizer)
            carry = Carry.of(cls, family(cls, flags), flags, self.horizon, self.decay)
        expected = self._table(carry, flags)
        return grouping.factors_by_group(optimizer, self._names(), expected)

    def clip_grad_norm_(self, max_norm: float, model: nn.Module | None = None) -> Tensor:
        """Clip gradients by a norm that means the same at every size (docs/theory.md, equation (8)).

        At base size this is `torch.nn.utils.clip_grad_norm_`.

        Args:
            max_norm: as tuned on the base.

        Returns:
            the norm before clipping.
        """
        params = self.named_parameters(model)
        rows = [self.rows[name] for name in params]
        weights = [1.0 if self.scheme.identity else math.sqrt(row.u / row.s) for row in rows]
        return clip(list(params.values()), weights, max_norm)

    # -- save and compare ------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Everything a resume needs, to be kept with a checkpoint."""
        passing = [
            note for notes in self._said.values() for note in notes
        ]  # of optimizers, which are not saved
        return saving.to_json(self, self._aliases, [note for note in self.notes if note not in passing])

    @classmethod
    def from_json(cls, text: str) -> Parametrization:
        """A parametrization as it was saved. It has no model: pass `model=` to `groups` and the rest."""
        return cls(**saving.from_json(text))

    def differences(self, other: Parametrization) -> list[str]:
        """What a resume would change: one line for each number that differs, none when all agree."""
        return saving.differences(self, other)
