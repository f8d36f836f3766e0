"""The OpenAI-compatible HTTP gateway: a client of octavo.v1.InferenceService.

Owns HTTP, its shapes and its errors; knows no model, no tokenizer and no decision of the scheduler.
Invariant: it holds nothing between two requests but a connection and what GetModelInfo said a moment ago, so
any number of gateways may stand in front of one scheduler.
"""
