"""Threads of ONNX Runtime that sleep while they wait for work.

By default they spin for a while after each node. Test processes share the cores, so that would take a fifth of the
processor time from the others.
"""

from __future__ import annotations

import functools

import onnxruntime

SPINNING = "session.intra_op.allow_spinning"


def let_threads_sleep() -> None:
    """Every session of this process that does not say otherwise is created so."""
    create = onnxruntime.InferenceSession.__init__

    @functools.wraps(create)
    def created(session, model, sess_options=None, *arguments, **keywords):
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        _sleep(options)
        create(session, model, options, *arguments, **keywords)

    onnxruntime.InferenceSession.__init__ = created


def _sleep(options):
    try:
        options.get_session_config_entry(SPINNING)
    except RuntimeError:  # it is not set
        options.add_session_config_entry(SPINNING, "0")
