"""A35: sampling values of the model folder apply only when the service was started with the switch."""

import json
import shutil
from pathlib import Path

import pytest

from octavo.v1 import inference_pb2 as pb
from tests.e2e.processes import Processes, ProcessFailed
from tests.e2e.rig import prompt_of, rig_at, seat_scheduler, wanted

PROMPT = prompt_of(9)


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A model folder whose generation_config.json asks for temperature 0.5."""
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "do_sample": True}))
    return folder


def asked(**sampling: float) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT),
        sampling=pb.SamplingOptions(seed=3, **sampling),  # type: ignore[arg-type]
        stopping=pb.StoppingOptions(max_tokens=8, ignore_eos=True),
    )


@pytest.mark.parametrize("switch", [(), ("--generation-config", "auto")], ids=["none", "auto"])
async def test_a35_the_folder_s_values_apply_by_the_switch_alone(
    processes: Processes, folder: Path, switch: tuple[str, ...]
) -> None:
    async with rig_at(seat_scheduler(processes, folder, *switch)) as rig:
        by_default = 0.5 if switch else 1.0
        assert (await rig.service.run(asked())).tokens == wanted(PROMPT, 8, by_default, 3)
        assert (await rig.service.run(asked(temperature=1.0))).tokens == wanted(PROMPT, 8, 1.0, 3)
        info = await rig.service.inference.GetModelInfo(pb.GetModelInfoRequest())
        said = pb.SamplingOptions(temperature=0.5) if switch else pb.SamplingOptions()
        assert info.default_sampling == said


def test_a35_a_folder_with_impossible_values_is_named_at_the_start(
    processes: Processes, folder: Path
) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"top_p": 2}))
    with pytest.raises(ProcessFailed, match=r"generation_config\.json: top_p: 2\.0 is out of"):
        processes.scheduler(folder, "unix:/nowhere", "--generation-config", "auto")
