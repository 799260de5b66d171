"""What programs import. No device is touched, so that forking is safe."""

# ruff: noqa: F401

import gc
import os

os.environ.setdefault("TQDM_MININTERVAL", "15")  # as programs set it; read at import

import matplotlib.figure
import scipy.stats
import sklearn.metrics
import tensorboardX

import lab.statistics
import lab.studies.streams
import lab.studies.study
import launch.init_from
import launch.prepare_run
import launch.record.plots
import launch.record.recorder
import launch.record.throughput
import launch.workdir
import training.checkpoint
import training.evaluation
import training.step

gc.freeze()
gc.set_threshold(100_000, 50, 50)  # tracing leaves many objects
