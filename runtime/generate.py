"""The draft-verify loop: prompt tokens in, pieces of text out.

Between rounds n tokens are committed and the KV cache holds the first n - 1: the last one is fed
with the next drafts. A round proposes, verifies, accepts and commits; an exception anywhere in it
leaves the session as the round found it. Plain decoding is the same loop without drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from speccc.errors import InputError
from speccc.runtime.controller import AdaptiveController, Controller
from speccc.runtime.drafter import NOTHING, Draft, Drafter, Drafting, Verdict, accept_exact
from speccc.runtime.protocols import (
    Logits,
    PickSession,
    PrefillSession,
    Session,
    TokenBytes,
    TopSession,
)
from speccc.runtime.sampling import (
    GREEDY,
    Pick,
    SamplingParams,
    known_pick,
    log_prob,
    pick_among,
    picker,
)
from speccc.runtime.stats import Round, Stats, summarize
from speccc.runtime.stream_text import FinishReason, Piece, TextStream

Progress = Callable[[int, int], None]
"""(prompt tokens done, prompt tokens in all)."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation. `tokens` are those the text needs; a stop token is not among them.

    `log_probs`, when asked for, has the model's own log-probability of each token.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    log_probs: tuple[float, ...] | None = None


def generate(
    session: Session,
    tokenizer: TokenBytes,
    prompt_tokens: Sequence[int],
    *,
    max_tokens: int | None = None,
    sampling: SamplingParams = GREEDY,
    drafter: Drafter | None = None,
    controller: Controller | None = None,
    stop_strings: Sequence[str] = (),
    stop_ids: Collection[int] = (),
    log_probs: bool = False,
    cached: int = 0,
    prefill_chunk: int = 64,
    on_progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[Piece, None, Generation]:
    """Yield pieces of text; the last has a finish reason. The generator returns a `Generation`.

    `max_tokens` None means as many as the context holds. The session is cut to the first `cached`
    tokens, which must be the prompt's, and left holding all but the last of prompt and output; it
    may be abandoned between pieces. Raises InputError, before touching the session, for a prompt
    that is empty or too long and for an option out of range.
    """
    budget = _budget(session, prompt_tokens, max_tokens)
    text = TextStream(budget, stop_strings, stop_ids)
    start = _cached(session, prompt_tokens, cached)
    if prefill_chunk < 1:
        raise InputError(f"must be 1 or more, not {prefill_chunk}", where="prefill_chunk")
    own = sampling.greedy and not log_probs
    tops = None if log_probs else _tops(session, sampling)
    loop = _Loop(
        session=session,
        tokenizer=tokenizer,
        context=list(prompt_tokens),
        prompt=len(prompt_tokens),
        cached=start,
        budget=budget,
        pick=picker(sampling),
        picks=session if own and isinstance(session, PickSession) else None,
        tops=tops,
        sampling=sampling,
        drafting=None if drafter is None else drafter.start(prompt_tokens),
        controller=AdaptiveController() if controller is None else controller,
        text=text,
        log_probs=[] if log_probs else None,
        clock=clock,
    )
    return loop.run(prefill_chunk, on_progress)


def collect(pieces: Generator[Piece, None, Generation]) -> Generation:
    """Run a generation to its end."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            done: Generation = end.value
            return done


def _budget(session: Session, prompt: Sequence[int], max_tokens: int | None) -> int:
    if not prompt:
        raise InputError("needs at least one token (a begin-of-text token will do)", where="prompt")
    if len(prompt) > session.context:
        raise InputError(
            f"has {len(prompt)} tokens, the context holds {session.context}; "
            "shorten it or ask for a larger context",
            where="prompt",
        )
    if max_tokens is not None and max_tokens < 0:
        raise InputError(f"must be 0 or more, not {max_tokens}", where="max_tokens")
    room = session.context - len(prompt) + 1  # the last token is never fed
    return room if max_tokens is None else min(max_tokens, room)


def _tops(session: Session, sampling: SamplingParams) -> TopSession | None:
    """The session, if it finds by itself all the logits that the filters let through."""
    if sampling.greedy or sampling.top_k < 1 or not isinstance(session, TopSession):
        return None
    return session if sampling.top_k <= session.most_top else None


def _cached(session: Session, prompt: Sequence[int], cached: int) -> int:
    if not 0 <= cached <= session.length:
        raise InputError(
            f"must lie between 0 and the session's {session.length}, not {cached}", where="cached"
        )
    return min(cached, len(prompt) - 1)


@dataclass(slots=True)
class _Loop:
    """The state of one generation. Only the session outlives it, at a length it can vouch for."""

    session: Session
    tokenizer: TokenBytes
    context: list[int]  # committed tokens: prompt and output
    prompt: int  # tokens of the prompt
    cached: int
    budget: int
    pick: Pick
    picks: PickSession | None  # the session, where its own choice is all that is needed
    tops: TopSession | None  # the session, where its largest logits are all that is needed
    sampling: SamplingParams
    drafting: Drafting | None
    controller: Controller
    text: TextStream
    log_probs: list[float] | None
    clock: Callable[[], float]
    rounds: list[Round] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def run(self, chunk: int, on_progress: Progress | None) -> Generator[Piece, None, Generation]:
        """Prefill, then rounds until the text ends."""
        self._prefill(chunk, on_progress)
        shown: list[str] = []
        while True:
            if self.text.finish_reason is None:
                self._step()
            piece = self.text.take()
            if piece is None:
                continue
            shown.append(piece.text)
            yield piece
            if piece.finish_reason is not None:
                return self._generation("".join(shown), piece.finish_reason)

    def _prefill(self, chunk: int, on_progress: Progress | None) -> None:
        """Feed all but the last token of the prompt; the last goes with the first round."""
        begin = self.clock()
        session, last = self.session, self.prompt - 1
        if session.length > self.cached:
            session.truncate(self.cached)
        for start in range(self.cached, last, chunk):
            end = min(start + chunk, last)
            with _restored(session):
                if isinstance(session, PrefillSession):
                    session.prefill(self.context[start:end])
                else:
                    session.forward(self.context[start:end])
            if on_progress is not None:
                on_progress(end, last)
        if self.cached < last:  # a prompt of one token has no rate
            self.prefill_seconds = self.clock() - begin

    def _step(self) -> None:
        begin = self.clock()
        try:
            with _restored(self.session):
                self._round(begin)
        finally:
            self.decode_seconds += self.clock() - begin

    def _round(self, begin: float) -> None:
        draft = self._propose()
        verdict = self._verify(draft)
        texts = [self.tokenizer.token_bytes(token) for token in verdict.tokens]
        self.rounds.append(
            Round(len(self.text.tokens), len(draft.tokens), draft.depth, len(verdict.nodes))
        )
        ended = any(
            self.text.push(token, data) is not None
            for token, data in zip(verdict.tokens, texts, strict=True)
        )
        self._commit(draft, verdict, ended, begin)

    def _propose(self) -> Draft:
        """A draft that fits what is left of the budget, which the context bounds too."""
        left = self.budget - len(self.text.tokens) - 1
        most = min(left, self.controller.limit())
        if self.drafting is None or most < 1:
            return NOTHING
        draft = self.drafting.propose(self.context, most).cut(most)
        return draft.cut(self.controller.choose(draft)) if draft.tokens else NOTHING

    def _verify(self, draft: Draft) -> Verdict:
        """One pass over the last token and the draft; logits are asked for only where needed."""
        tokens = [self.context[-1], *draft.tokens]
        parents = [-1, *(p + 1 for p in draft.parents)] if draft.parents else None
        if self.picks is not None:
            picks: list[int] = self.picks.pick(tokens, parents=parents).tolist()
            return accept_exact(draft, lambda row, taken: known_pick(picks[row]))
        first, pick = len(self.context), self.pick
        if self.tops is not None:
            params = self.sampling
            values, found = self.tops.top(tokens, params.top_k, parents=parents)
            return accept_exact(
                draft, lambda row, taken: pick_among(values[row], found[row], first + taken, params)
            )
        logits = self.session.forward(tokens, parents=parents)
        verdict = accept_exact(draft, lambda row, taken: pick(logits[row], first + taken))
        if self.log_probs is not None:
            self.log_probs += _log_probs(logits, verdict)
        return verdict

    def _commit(self, draft: Draft, verdict: Verdict, ended: bool, begin: float) -> None:
        """Tell drafter and controller, then cut the session; nothing after that can fail."""
        if self.drafting is not None:
            self.controller.observe(draft, verdict.nodes, 1000.0 * (self.clock() - begin))
            if not ended:
                self.drafting.observe(verdict.tokens)
        length = self.prompt + len(self.text.tokens) - 1
        if draft.parents:
            self.session.keep([0, *(node + 1 for node in verdict.nodes)])
        if self.session.length > length:
            self.session.truncate(length)
        if ended:
            self.context[self.prompt :] = self.text.tokens
        else:
            self.context += verdict.tokens

    def _generation(self, text: str, reason: FinishReason) -> Generation:
        tokens = tuple(self.text.tokens)
        stats = summarize(
            self.rounds,
            prompt_tokens=self.prompt,
            completion_tokens=len(tokens),
            cached_tokens=self.cached,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
        )
        log_probs = None if self.log_probs is None else tuple(self.log_probs[: len(tokens)])
        return Generation(text, tokens, reason, stats, log_probs)


def _log_probs(logits: Logits, verdict: Verdict) -> list[float]:
    rows = (0, *(node + 1 for node in verdict.nodes))
    return [log_prob(logits[r], token) for r, token in zip(rows, verdict.tokens, strict=True)]


@contextmanager
def _restored(session: Session) -> Iterator[None]:
    """On any exception, cut the session back to the length it had."""
    before = session.length
    try:
        yield
    except BaseException:
        if session.length > before:
            session.truncate(before)
        raise
