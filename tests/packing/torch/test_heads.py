"""`packed_heads`: the answers, loss and gradients of each sequence alone, or a refusal."""

import copy
import math
import pickle

import pytest

import packing

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from experiments.isolation_atlas.tiny import build, tiny  # noqa: E402
from experiments.isolation_atlas.trial import gradients  # noqa: E402
from packing.torch import PackedCollator, heads, packed_heads  # noqa: E402
from tests.packing.torch.rows import ROW, packs  # noqa: E402

pytestmark = pytest.mark.extra("torch", "transformers")

QUICK = ("bert", "roberta", "distilbert", "electra", "modernbert", "gpt2", "llama")
OTHERS = sorted((heads.FIRST | heads.LAST) - {*QUICK})
EAGER = ("gemma2", "gpt_oss", "megatron-bert", "mpnet", "mpt", "rembert", "squeezebert")
SEQUENCES = sum(map(len, packs()))


def make(name, *, pooling="mean", labels=3, implementation=None, **fields):
  config = tiny(name)
  config.num_labels = labels
  for field in ("classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob"):
    if getattr(config, field, None) is not None:
      setattr(config, field, 0.0)
  if hasattr(config, "classifier_pooling"):
    config.classifier_pooling = pooling
  for field, value in fields.items():
    setattr(config, field, value)
  implementation = implementation or ("eager" if name in EAGER else "sdpa")
  return build(transformers.AutoModelForSequenceClassification, config, implementation)


def with_labels(values):
  values = iter(values)
  return [[example | {"label": next(values)} for example in pack] for pack in packs()]


def alone(model, rows):
  """The logits, the mean of the model's own losses, and its gradients."""
  logits, losses = [], []
  for example in (example for pack in rows for example in pack):
    ids, label = torch.as_tensor(example["input_ids"])[None], example["label"]
    out = model(input_ids=ids, labels=torch.tensor([label]))
    logits.append(out.logits)
    if label != -100:
      losses.append(out.loss)
  loss = torch.stack(losses).mean()
  loss.backward()
  return torch.cat(logits), loss, gradients(model)


def packed(model, rows, **options):
  options = {"max_sequences": 5, "answers": "sequence"} | options
  batch = PackedCollator.for_model(model.config, row_length=ROW, **options)(rows)
  out = packed_heads(model)(**batch)
  out.loss.backward()
  assert out.logits.shape == (2, 5, model.config.num_labels)
  return out.logits[batch["sequence_mask"]], out.loss, gradients(model)


def assert_equal(found, expected):
  for x, y in zip(found, expected, strict=True):
    torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
  "name", [*QUICK, *(pytest.param(x, marks=pytest.mark.slow) for x in OTHERS)]
)
def test_each_sequence_has_the_answer_that_it_has_alone(name):
  model, rows = make(name), with_labels([0, 2, 1, 1, 0, 2, 1])
  assert len({type(x) for x in (model, packed_heads(copy.deepcopy(model)))}) == 2
  expected = alone(model, rows)
  found = packed(model, rows)
  assert_equal(found, expected)
  assert expected[2].abs().max() > 1e-2


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_config_of_modernbert_says_what_is_read(pooling, implementation):
  rows = with_labels(range(7))
  model = make("modernbert", pooling=pooling, labels=7, implementation=implementation)
  assert_equal(packed(copy.deepcopy(model), rows), alone(model, rows))


@pytest.mark.parametrize("name", ["bert", "modernbert", "llama"])
@pytest.mark.parametrize(
  ("labels", "values", "problem"),
  [
    (1, [0.5, 2.0, -1.0, 0.25, 3.5, 1.5, -2.5], "regression"),
    (3, [[1.0, 0.5, i] for i in (0.5, 2.0, -1.0, 0.25, 3.5, 1.5, -2.5)], "regression"),
    (3, [[1.0, 0.0, float(i % 2)] for i in range(7)], "multi_label_classification"),
    (3, [2, -100, 0, 1, -100, 2, 2], "single_label_classification"),
  ],
)
def test_losses_of_all_problems(name, labels, values, problem):
  rows, model = with_labels(values), make(name, labels=labels)
  concluded = labels == 1 or problem != "regression"
  model.config.problem_type = None if concluded else problem
  plain = copy.deepcopy(model)
  assert_equal(packed(model, rows), alone(plain, rows))
  assert model.config.problem_type == plain.config.problem_type == problem


def test_whole_numbers_are_targets_of_a_regression_too():
  """transformers has no gradient of the difference of floats and integers."""
  numbers = [3, 0, -2, 5, 1, 1, 4]
  whole, floats = (
    packed(make("bert", labels=1), with_labels(map(kind, numbers))) for kind in (int, float)
  )
  assert_equal(whole, floats)


@pytest.mark.parametrize("values", [[0, 2, 1, 1, 0, 2, -100], [[0.5, 1.0, 0.0]] * 7])
def test_micro_batches_add_up_to_one_batch(values):
  rows, model = with_labels(values), make("roberta")
  _, whole, expected = packed(model, rows)
  number = sum(value != -100 for value in values)
  collator = PackedCollator.for_model(model.config, row_length=ROW, answers="sequence")
  losses = [model(**collator([row]), num_items_in_batch=number).loss for row in rows]
  sum(losses).backward()
  assert_equal((sum(losses), gradients(model)), (whole, expected))


def test_the_one_long_row_of_flash_inputs_has_the_same_answers():
  """With sdpa, in which positions keep the sequences of a causal model apart."""
  rows, model = with_labels([0, 2, 1, 1, 0, 2, 1]), make("llama")
  expected = alone(model, rows)
  flat = PackedCollator(row_length=ROW, causal=True, attention="flash", max_sequences=5)
  batch = flat(rows)
  assert batch["input_ids"].shape == (1, 2 * ROW)
  out = packed_heads(model)(**batch)
  out.loss.backward()
  found = out.logits[batch["sequence_mask"]], out.loss, gradients(model)
  assert_equal(found, expected)


def test_means_over_the_one_long_row_are_those_of_its_sequences():
  model, rows = packed_heads(make("modernbert")), with_labels(range(7))
  hidden = torch.randn(2, ROW, 5, generator=torch.Generator().manual_seed(0))
  found = []
  for flat in (False, True):
    form = {"attention": "flash", "implementation": "flash_attention_2"} if flat else {}
    batch = PackedCollator(row_length=ROW, **form)(rows)
    places = batch["cls_positions"], batch["sequence_ends"]
    shape = (1, 2 * ROW, 5) if flat else hidden.shape
    pooled = heads._pool(model, hidden.view(shape), batch, *places)
    found.append(pooled.view(2, 4, 5)[batch["sequence_mask"]])
  expected = [hidden[0, :9].mean(0), hidden[0, 9:12].mean(0)]
  assert_equal(found[0][:2], expected)
  assert_equal(found[1], found[0])


@pytest.mark.parametrize("pad", [None, 7])
def test_a_last_token_that_is_the_token_of_padding_is_skipped_as_alone(pad):
  """As GPT-2's, for which users take the end of text as padding."""
  rows = with_labels([0, 2, 1, 1, 0, 2, 1])
  for n in (0, 2):
    rows[0][n]["input_ids"][-2:] = 7
  rows[0][3]["input_ids"][:] = 7  # nothing but padding
  model = make("gpt2", pad_token_id=pad)
  expected = alone(model, rows)
  assert_equal(packed(model, rows), expected)
  other = copy.deepcopy(model)
  other.config.pad_token_id = None if pad else 7
  assert (packed(other, rows)[0] - expected[0]).abs().max() > 1e-2


@pytest.mark.parametrize(
  ("name", "kind"),
  [
    ("bert", "ForTokenClassification"),
    ("bert", "ForMultipleChoice"),
    ("roberta", "ForMaskedLM"),
    ("deberta-v2", "ForSequenceClassification"),
    ("xlnet", "ForSequenceClassification"),
  ],
)
def test_other_models_are_refused_by_name(name, kind):
  config = tiny(name)
  automatic = getattr(transformers, f"AutoModel{kind}")
  with torch.device("meta"):
    model = automatic.from_config(config)
  message = rf"^{type(model).__name__} \(type '{name}'\) has no head .* Pad its batches"
  with pytest.raises(packing.InputError, match=message):
    packed_heads(model)
  with pytest.raises(packing.InputError, match=r"^Linear \(type None"):
    packed_heads(torch.nn.Linear(2, 2))


def test_a_model_is_to_be_changed_before_it_is_wrapped():
  class ForSequenceClassification(torch.nn.Module):  # type: ignore[name-defined]
    def __init__(self, model):
      super().__init__()
      self.wrapped, self.config = model, model.config
      self.base_model_prefix = model.base_model_prefix

  model = make("bert")
  with pytest.raises(packing.InputError, match="before it is wrapped"):
    packed_heads(ForSequenceClassification(model))
  assert not heads.has_packed_heads(ForSequenceClassification(model))
  assert heads.has_packed_heads(ForSequenceClassification(packed_heads(model)))


def test_a_pooling_that_reads_no_one_vector_is_refused():
  with pytest.raises(packing.InputError, match="classifier_pooling='late'; expected one"):
    packed_heads(make("eurobert", pooling="late"))


@pytest.mark.parametrize("name", ["bert", "modernbert", "llama"])
def test_saved_weights_are_those_of_the_plain_model(name, tmp_path):
  model = make(name)
  plain, names = type(model), [*model.state_dict()]
  assert packed_heads(packed_heads(model)) is model
  assert isinstance(model, plain)
  assert [*model.state_dict()] == names
  model.save_pretrained(tmp_path)
  loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
  assert type(loaded) is plain
  assert loaded.config.architectures == [plain.__name__]
  ids, mask = (
    torch.tensor([[5, 6, 7, 0], [9, 8, 7, 6]]),
    torch.tensor([[1, 1, 1, 0], [1] * 4]),
  )
  batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([1, 2])}
  with torch.no_grad():  # a padded batch has what it had
    ours, theirs = model(**batch), loaded(**batch)
  torch.testing.assert_close(ours.logits, theirs.logits)
  torch.testing.assert_close(ours.loss, theirs.loss)
  rows = with_labels(range(7))
  collator = PackedCollator.for_model(model.config, row_length=ROW, answers="sequence")
  copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model)), packed_heads(loaded)
  with torch.no_grad():
    expected = model(**collator(rows) | {"labels": None}).logits
    for one in copies:
      found = one(**collator(rows) | {"labels": None}).logits
      torch.testing.assert_close(found, expected)
    copies[0].get_input_embeddings().weight.zero_()  # a copy, with weights of its own
    assert not torch.equal(copies[0](**collator(rows) | {"labels": None}).logits, expected)
    assert torch.equal(model(**collator(rows) | {"labels": None}).logits, expected)


def test_outputs_come_as_a_tuple_where_that_is_asked_for():
  model = packed_heads(make("bert"))
  collator = PackedCollator.for_model(model.config, row_length=ROW, answers="sequence")
  batch = collator(with_labels([0, 1, 2, 0, 1, 2, 0]))
  out = model(**batch, output_hidden_states=True)
  loss, logits, hidden = model(**batch, output_hidden_states=True, return_dict=False)
  assert torch.equal(loss, out.loss)
  assert torch.equal(logits, out.logits)
  assert [x.shape[:2] for x in hidden] == [(2, ROW)] * len(out.hidden_states)


# ---- what is no batch for it ---------------------------------------------------------


def test_a_packed_batch_without_places_is_refused():
  model = packed_heads(make("bert"))
  collator = PackedCollator.for_model(model.config, row_length=ROW)
  with pytest.raises(packing.InputError, match="with answers='sequence'"):
    model(**collator(packs()))
  batch = PackedCollator.for_model(model.config, row_length=ROW, answers="sequence")(
    packs()
  )
  assert "labels" not in batch
  assert model(**batch).loss is None
  del batch["sequence_ends"]
  with pytest.raises(packing.InputError, match="needs input_ids, cls_positions"):
    model(**batch)


@pytest.mark.parametrize(
  ("labels", "values", "problem", "message"),
  [
    (3, range(7), "multi_label_classification", r"expected \[2, 4, 3\], 3 floats for each"),
    (3, [[0.5] * 2] * 7, None, r"\[2, 4, 2\]; expected \[2, 4, 3\], 3 floats"),
    (3, [[0.5] * 3] * 7, "single_label_classification", r"expected \[2, 4\], one integer"),
  ],
)
def test_labels_of_another_shape_are_refused(labels, values, problem, message):
  model = packed_heads(make("bert", labels=labels, problem_type=problem))
  collator = PackedCollator.for_model(model.config, row_length=ROW, answers="sequence")
  with pytest.raises(packing.InputError, match=message):
    model(**collator(with_labels(values)))


def test_places_are_those_of_the_first_and_the_last_token():
  collator = PackedCollator(row_length=9, max_sequences=3, length_multiple=2, causal=True)
  pack = [{"input_ids": [1] * n, "label": n} for n in (3, 1, 2)]
  batch = collator([pack, pack[:1]])
  assert batch["cls_positions"].tolist() == [[0, 4, 6], [0, 0, 0]]
  assert batch["sequence_ends"].tolist() == [[2, 4, 7], [2, 0, 0]]
  flat = PackedCollator(row_length=9, max_sequences=3, causal=True, attention="flash")
  assert flat([pack, pack[:1]])["sequence_ends"].tolist() == [[2, 3, 5], [11, 9, 9]]


def test_lists_of_floats_are_labels_of_sequences_if_these_are_answered_for():
  collator = PackedCollator(row_length=6, max_sequences=2, answers="sequence")
  pack = [{"input_ids": [5, 6], "labels": [0.0, 1.0]}]
  labels = collator([pack])["labels"]
  assert labels.shape == (1, 2, 2)
  assert labels[0, 0].tolist() == [0, 1]
  assert labels[0, 1].isnan().all()
  for wrong in ([0.5], [1, 0]):
    with pytest.raises(packing.InputError, match="expected as many floats in each"):
      collator([[*pack, {"input_ids": [7], "labels": wrong}]])
  for missing in ({"labels": [0.0, math.nan]}, {"label": math.nan}):
    with pytest.raises(packing.InputError, match=r"label of an example is NaN. Leave out"):
      collator([[{"input_ids": [5, 6]} | missing]])
  with pytest.raises(packing.InputError, match="answers is 'row'; expected token, seq"):
    PackedCollator(row_length=6, answers="row")
