import assert from 'node:assert/strict';
import { test } from 'node:test';

import { choose, type INeed } from '../src/choose';
import { read, type IFound } from '../src/names';

const model = (name: string, is: { compiled?: boolean; used?: boolean } = {}): IFound['models'][number] => ({
  name,
  className: 'Net',
  compiled: is.compiled ?? false,
  used: is.used ?? false
});
const found = (models: IFound['models'], steps: IFound['steps'] = []): IFound => ({ loaded: true, models, steps });
const needed: INeed = { step: 'needed', compiled: false };
const used: INeed = { step: 'used', compiled: false };
const alone: INeed = { step: null, compiled: false };

const answer = (value: unknown): Record<string, unknown> => ({ status: 'ok', user_expressions: { names: value } });

test("a kernel's answer is read as what any program may have sent", () => {
  // GIVEN answers WHEN they are read THEN what is no name is left out, and what is no answer is told
  const data = {
    loaded: true,
    models: [{ name: 'net', class_name: 'Net', compiled: true }, { name: 'x); evil(' }, null],
    steps: [{ name: 'step', models: ['net', 3] }]
  };
  assert.deepEqual(read(answer({ status: 'ok', data: { 'application/json': data } })), {
    kind: 'found',
    found: {
      loaded: true,
      models: [{ name: 'net', className: 'Net', compiled: true, used: false }],
      steps: [{ name: 'step', models: ['net'] }]
    }
  });
  const missing = read(
    answer({ status: 'error', ename: 'ModuleNotFoundError', evalue: "No module named 'nbcompile'" })
  );
  assert.ok(missing.kind === 'unfit' && missing.why.includes('%pip install nbcompile'));
  const other = read(answer({ status: 'error', ename: 'SyntaxError', evalue: 'bad' }));
  assert.ok(other.kind === 'unfit' && other.why.includes('SyntaxError: bad'));
  for (const wrong of [{}, answer(null), answer({ status: 'ok', data: { 'application/json': { models: 3 } } })]) {
    assert.equal(read(wrong).kind, 'unfit');
  }
});

test('one model is the one that is meant, with the function that runs it', () => {
  // GIVEN one model WHEN a command chooses THEN nothing is asked
  const choice = choose(found([model('net')], [{ name: 'run', models: ['net'] }]), '', needed);
  assert.deepEqual([choice.model, choice.step, choice.certain], ['net', 'run', true]);
  // a step that is only used may be missing, one that is needed is asked for
  assert.equal(choose(found([model('net')]), '', used).certain, true);
  assert.equal(choose(found([model('net')]), '', needed).certain, false);
  assert.equal(choose(found([model('net')]), '', alone).certain, true);
});

test('of several models the one that the cell uses is meant', () => {
  // GIVEN two models WHEN the cell uses one THEN it is that one; else it is asked, the likeliest first
  const one = choose(found([model('a'), model('b', { used: true })]), '', alone);
  assert.deepEqual([one.model, one.certain], ['b', true]);
  assert.equal(choose(found([model('a'), model('b')]), '', alone).certain, false);
  assert.equal(choose(found([model('a', { used: true }), model('b', { used: true })]), '', alone).certain, false);
  const need = { step: null, compiled: true };
  assert.deepEqual(choose(found([model('a'), model('b', { compiled: true })]), '', need), {
    model: 'b',
    step: '',
    models: ['b', 'a'],
    steps: [],
    certain: true
  });
});

test('of several functions the one that the cell uses is meant, else the one named step', () => {
  // GIVEN functions that run the model WHEN one is used in the cell or named step THEN it is that one
  const some = found(
    [model('net')],
    [
      { name: 'train', models: ['net'] },
      { name: 'step', models: ['net'] },
      { name: 'other', models: ['gone'] }
    ]
  );
  assert.equal(choose(some, 'train()', needed).step, 'train');
  assert.equal(choose(some, '', needed).step, 'step');
  assert.deepEqual(choose(some, '', needed).steps, ['train', 'step', 'other']);
  const unclear = found(
    [model('net')],
    [
      { name: 'train', models: ['net'] },
      { name: 'test', models: ['net'] }
    ]
  );
  assert.equal(choose(unclear, '', needed).certain, false);
  assert.equal(choose(unclear, '', used).certain, false);
});
