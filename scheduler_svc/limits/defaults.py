"""Sampling defaults of a model folder, for the operator who asks for them by name.

Owns their check at start and the filling in of what a request leaves out; does not know files. Invariant: a
value that a client sent, also one equal to the schema's default, is never replaced.
"""

from collections.abc import Mapping

from octavo import bounds
from octavo.errors import FailedPrecondition, OctavoError
from octavo.v1 import inference_pb2 as pb
from scheduler_svc.limits.generate import check_generate
from scheduler_svc.limits.values import Limits, ModelFacts

_ANY_MODEL = ModelFacts(max_model_len=1 << 30, vocab_size=1 << 30)


def sampling_defaults(values: Mapping[str, float], limits: Limits) -> pb.SamplingOptions:
    """The values of a folder as the defaults of requests.

    Raises FailedPrecondition (BAD_MODEL_FOLDER), naming the value, when a request could not have it.
    """
    defaults = pb.SamplingOptions()
    for name, value in values.items():
        try:
            setattr(defaults, name, value)
            check_generate(pb.GenerateRequest(text="-", sampling=defaults), limits, _ANY_MODEL)
        except (TypeError, ValueError):
            raise _bad(bounds.refusal(name, value)) from None
        except OctavoError as error:
            raise _bad(error.message.removeprefix("sampling.")) from None
    return defaults


def fill_in(request: pb.GenerateRequest, defaults: pb.SamplingOptions) -> None:
    """Gives a request the defaults that it left out, in place."""
    for field, value in defaults.ListFields():
        if not request.sampling.HasField(field.name):
            setattr(request.sampling, field.name, value)


def _bad(message: str) -> FailedPrecondition:
    return FailedPrecondition(f"generation_config.json: {message}", reason="BAD_MODEL_FOLDER")
