"""The equality harness on tiny random models of every family in float64: A06, A10, A12, A18, A25."""

import asyncio
import random
from pathlib import Path

import pytest
import torch

from octavo.v1 import inference_pb2 as pb
from scheduler_svc.core.plan import branch_seed
from tests.e2e.processes import Processes
from tests.e2e.service import request
from tests.fixtures.hf_families import FAMILIES, OTHERS
from tests.harness.plants import TINY_SHAPES, TINY_TOKENS, family_plant, tiny_plant, tiny_prompts
from tests.harness.reference import from_folder
from tests.harness.report import publish
from tests.harness.service_run import Outcome, Plant, Runner
from tests.harness.settings import Setting, covering_settings
from tests.harness.verdict import Verdict

ROUNDS = 2


HARDEST = [one for one in covering_settings() if one.crowd and one.small_pool]
"""A pool that preempts, with and without the cache; one of the two chunks, the other loses its worker."""
SPECIAL = ("gemma2", "gemma3_text", "mixtral with a window", "olmo2", "phi3", "qwen3_moe")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", sorted(TINY_SHAPES))
def test_every_setting_gives_transformers_tokens(family: str, processes: Processes, tmp_path: Path) -> None:
    """Greedy tokens under eight settings, each prompt sent twice, and transformers' own generate."""
    compare(tiny_plant(family, tmp_path), family, covering_settings(), processes)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", SPECIAL)
def test_families_under_the_hardest_settings(family: str, processes: Processes, tmp_path: Path) -> None:
    """Windows, caps, experts and other norms: the two settings of the eight that preempt in a crowd."""
    compare(family_plant(family, tmp_path / "model"), family, HARDEST, processes)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", ["gpt2", "falcon", "starcoder2"])
def test_models_of_transformers_under_the_hardest_settings(
    family: str, processes: Processes, tmp_path: Path
) -> None:
    """Through the whole service: learned positions, one KV head by fused attention, a window."""
    compare(family_plant(family, tmp_path / "model"), family, HARDEST, processes)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", sorted(FAMILIES | OTHERS))
def test_families_under_every_setting(family: str, processes: Processes, tmp_path: Path) -> None:
    compare(family_plant(family, tmp_path / "model"), family, covering_settings(), processes)


def compare(plant: Plant, family: str, settings: list[Setting], processes: Processes) -> None:
    """The plant's greedy tokens under each setting are transformers'."""
    torch.set_num_threads(1)
    prompts = tiny_prompts()
    reference = from_folder(plant.model, torch.float64)
    verdict, runner = Verdict(f"tiny {family}, float64"), Runner(processes, plant)
    generated = [reference.generate(prompt, TINY_TOKENS) for prompt in prompts]
    verdict.add("transformers generate", prompts, generated, TINY_TOKENS, reference.logits)
    outcomes = []
    for setting in settings:
        messages = [request(prompt, TINY_TOKENS) for prompt in prompts]
        outcome = asyncio.run(runner.run(setting, messages, ROUNDS))
        verdict.add(setting.name, prompts * ROUNDS, outcome.outputs, TINY_TOKENS, reference.logits)
        outcomes.append(outcome)
    publish(verdict, outcomes)
    verdict.check()
    for outcome in outcomes:
        assert_setting_was_real(outcome)


def assert_setting_was_real(outcome: Outcome) -> None:
    """The small pool preempted, by swap where it was to; the cache was hit or not at all."""
    setting = outcome.setting
    if setting.crowd and setting.small_pool:
        assert outcome.preemptions > 0, setting.name
        assert (outcome.swapped_in > 0) == setting.swaps, setting.name
    assert (outcome.cached > 0) == setting.cache, setting.name


def asking(prompts: list[list[int]]) -> list[pb.GenerateRequest]:
    """A request for each prompt, its parameters drawn at random from all that there are."""
    messages = []
    for number, prompt in enumerate(prompts):
        rng = random.Random(number)
        message = request(prompt, TINY_TOKENS, temperature=rng.choice([0.0, 0.7, 1.1]), seed=number)
        sampling, output = message.sampling, message.output
        for field, values in PARAMETERS.items():
            if rng.random() < 0.4:
                setattr(sampling, field, rng.choice(values))
        if rng.random() < 0.3:
            sampling.logit_bias.update({rng.randrange(3, 380): rng.uniform(-5, 5) for _ in range(5)})
        if rng.random() < 0.3:
            output.logprobs = rng.randint(0, 3)
        if rng.random() < 0.2:
            output.prompt_logprobs = 1
        if rng.random() < 0.2:
            message.stopping.min_tokens, message.stopping.ignore_eos = TINY_TOKENS // 2, False
        elif rng.random() < 0.4:
            kind, grammar = rng.choice(GRAMMARS)
            setattr(message.response_format, kind, grammar)
        if rng.random() < 0.3:
            message.stopping.stop.extend(rng.sample(STOPS, 2))
            message.stopping.include_stop_str_in_output = rng.random() < 0.5
        if rng.random() < 0.3:
            message.stopping.stop_token_ids.extend(rng.sample(range(3, 380), 40))
        messages.append(message)
    return messages


STOPS = ["e", "o", "1", " t", "in", "no such text"]
GRAMMARS = [
    ("regex", "([a-z0-9]{1,4} ){3,60}"),
    ("ebnf", 'root ::= "[" (word ", ")+ word "]"\nword ::= [a-z]+'),
    ("json_schema", '{"type": "array", "items": {"enum": ["one", "two", 3]}, "minItems": 2}'),
    ("json_schema", '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}}}'),
]


PARAMETERS: dict[str, list[float]] = {
    "top_k": [5, 40],
    "top_p": [0.5, 0.9],
    "min_p": [0.05],
    "presence_penalty": [-0.5, 1.0],
    "frequency_penalty": [-0.2, 0.7],
    "repetition_penalty": [0.9, 1.3],
}


def outputs(outcome: Outcome) -> list[list[list[int]]]:
    return [[reply.branches[branch] for branch in sorted(reply.branches)] for reply in outcome.replies]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n", [1, 3])
def test_all_parameters_give_the_same_under_opposite_settings(
    n: int, processes: Processes, tmp_path: Path
) -> None:
    """A14, A15, A18: parameters drawn at random, alone and in a crowd that is preempted, chunked and killed.

    With n sequences each is the single run with its derived seed. Values of log-probabilities are the same
    too.
    """
    plant, prompts = tiny_plant("qwen3", tmp_path), tiny_prompts()
    messages = asking(prompts)
    runner = Runner(processes, plant)
    settings = covering_settings()
    alone = next(one for one in settings if not one.crowd and not one.killed)
    hard = [one for one in settings if one.crowd and one.small_pool]
    singles = []
    for message in messages:
        for branch in range(n):
            single = pb.GenerateRequest.FromString(message.SerializeToString())
            single.sampling.seed = branch_seed(message.sampling.seed, branch)
            singles.append(single)
        message.n = n
    wanted = asyncio.run(runner.run(alone, singles)).replies
    assert len({tuple(reply.tokens) for reply in wanted}) > len(prompts) // 2
    ends = [reply.ends[0] for reply in wanted]
    assert {"LENGTH", "STOP"} == {reason for reason, _ in ends}
    assert {str, int, type(None)} == {type(matched) for _, matched in ends}, "strings, ids and neither"
    for setting in hard:
        outcome = asyncio.run(runner.run(setting, messages))
        found = outputs(outcome)
        for at, reply in enumerate(wanted):
            assert found[at // n][at % n] == reply.tokens, (setting.name, at)
            told, branch = outcome.replies[at // n], at % n
            assert (told.texts.get(branch, ""), told.ends[branch]) == (reply.text, reply.ends[0])
        if n == 1:
            for reply, first in zip(outcome.replies, wanted, strict=True):
                assert reply.logprobs == pytest.approx(first.logprobs, abs=1e-5)
                assert reply.prompt_logprobs == pytest.approx(first.prompt_logprobs, abs=1e-5)
        assert outcome.preemptions > 0, setting.name
