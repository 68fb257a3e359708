import assert from 'node:assert/strict';
import { test } from 'node:test';

import schema from '../schema/commands.json';
import {
  compareCell,
  compileCell,
  DEFAULTS,
  obstacle,
  panelCell,
  planCell,
  quoted,
  readDefaults,
  restoreCell,
  stepCell,
  tuneCell,
  usedIn,
  word
} from '../src/cells';

const names = { model: 'model', step: 'step', loaded: true };
const set = { ...DEFAULTS, backend: 'aot_eager', mode: 'max-autotune', dynamic: 'true', rest: 'compile', rounds: 3 };

test('the settings file has the defaults that the cells take', () => {
  // GIVEN the schema's defaults WHEN they are read THEN they are those of the code
  const given = Object.fromEntries(Object.entries(schema.properties).map(([name, value]) => [name, value.default]));
  assert.deepEqual(readDefaults(given), DEFAULTS);
  assert.deepEqual(Object.keys(given).sort(), Object.keys(DEFAULTS).sort());
});

test('settings that are not as they have to be are the defaults', () => {
  // GIVEN what a hand-written file may hold WHEN it is read THEN what is wrong is the default
  const read = readDefaults({
    strategies: 'none, full',
    backend: 7,
    mode: ' lite ',
    dynamic: 'perhaps',
    fullgraph: 'yes',
    rounds: 2.5,
    calls: -1,
    budget: Infinity
  });
  assert.deepEqual(read, { ...DEFAULTS, strategies: ['full'], mode: 'lite' });
  assert.deepEqual(readDefaults({ strategies: 3 }).strategies, DEFAULTS.strategies);
});

test('a step is compiled with what is set, and what is at its default is left out', () => {
  // GIVEN a cell WHEN it is made a step THEN its text stays, below the magic
  assert.deepEqual(stepCell('out = model(x)\n', names, DEFAULTS), {
    above: null,
    source: '%%compile_regional model --compare eager,full\nout = model(x)\n'
  });
  assert.equal(
    stepCell('model(x)', names, { ...set, fullgraph: true, strategies: ['regional'] }).source,
    '%%compile_regional model --backend aot_eager --mode max-autotune --dynamic true --fullgraph --rest compile ' +
      '--compare none -r 3\nmodel(x)'
  );
});

test('where nbcompile is not loaded the cell loads it, or one above where a magic has to be first', () => {
  // GIVEN a kernel that has not loaded it WHEN cells are written THEN it is loaded before it is needed
  const unloaded = { ...names, loaded: false };
  assert.equal(stepCell('model(x)', unloaded, DEFAULTS).above, '%load_ext nbcompile');
  assert.match(stepCell('model(x)', unloaded, DEFAULTS).source, /^%%compile_regional model/);
  for (const cell of [
    compileCell(unloaded, DEFAULTS),
    compareCell(unloaded, DEFAULTS),
    tuneCell(unloaded, DEFAULTS),
    panelCell(unloaded),
    planCell(unloaded, DEFAULTS),
    restoreCell(unloaded)
  ]) {
    assert.equal(cell.above, null);
    assert.match(cell.source, /^%load_ext nbcompile\n/);
  }
});

test('cells to compile, compare and tune', () => {
  // GIVEN names and settings WHEN cells are written THEN they are calls with what differs from the defaults
  assert.equal(
    compileCell(names, DEFAULTS).source,
    'import nbcompile\n\nnbcompile.compile_regions(model)\nstep()  # the first call compiles\nnbcompile.report(model)'
  );
  assert.equal(
    compileCell({ ...names, step: '' }, set).source,
    'import nbcompile\n\nnbcompile.compile_regions(model, backend="aot_eager", mode="max-autotune", dynamic=True, ' +
      'rest="compile");  # compiles at the next call of the model'
  );
  assert.match(compileCell({ ...names, step: 'lambda: model(x)' }, DEFAULTS).source, /^\(lambda: model\(x\)\)\(\)/m);
  assert.match(
    compareCell(names, { ...set, strategies: ['eager', 'full'] }).source,
    // rest is of no use without regional
    /\nnbcompile\.compare\(model, step, \["eager", "full"\], backend="aot_eager", mode="max-autotune", dynamic=True, rounds=3\)$/
  );
  assert.match(tuneCell(names, DEFAULTS).source, /\nnbcompile\.tune\(model, step, calls=1000, budget=180\)$/);
  assert.match(tuneCell(names, set).source, /, space=\{"backend": \["aot_eager"\]\}\)$/);
});

test('cells with a line of their own', () => {
  // GIVEN names WHEN the cells are written THEN expressions with spaces are one word of the line
  assert.equal(panelCell(names).source, '%nbcompile panel model step');
  assert.equal(panelCell({ ...names, step: 'lambda: model(x)' }).source, "%nbcompile panel model 'lambda: model(x)'");
  assert.equal(panelCell({ ...names, step: '' }).source, '%nbcompile panel model');
  assert.equal(planCell(names, set).source, '%nbcompile plan model --rest compile');
  assert.equal(restoreCell({ ...names, model: 'models["a b"]' }).source, '%nbcompile restore \'models["a b"]\'');
});

test('a value of a setting cannot leave its place', () => {
  // GIVEN values that would end a text, a word or a line WHEN they are quoted THEN they stay one
  assert.equal(quoted('a"); import os; ("'), '"a\\"); import os; (\\""');
  assert.equal(quoted('a\nb'), '"a\\nb"');
  assert.equal(word('inductor -q'), "'inductor -q'");
  assert.equal(word('-q'), "'-q'");
  assert.equal(word('a\n!rm x'), "'a !rm x'");
  assert.equal(word("it's"), '"it\'s"');
  assert.throws(() => word(`a'b"c`), /both kinds of quotes/);
});

test('a cell that cannot be a step says why', () => {
  // GIVEN cells WHEN they are looked at THEN those without a step, or with a magic of their own, are refused
  assert.equal(obstacle('out = model(x)'), null);
  assert.equal(obstacle('%time model(x)'), null);
  assert.match(obstacle(' \n') ?? '', /is empty/);
  assert.match(obstacle('\n%%time\nmodel(x)') ?? '', /begins with %%time/);
  assert.match(obstacle('%%compile_regional model\nmodel(x)') ?? '', /already/);
});

test('the models that a cell uses are found by their names', () => {
  // GIVEN a cell WHEN names are looked for THEN whole names count, and no attributes
  assert.deepEqual(usedIn('y = net(x); other.model(y)', ['model', 'net', 'ne']), ['net']);
  assert.deepEqual(usedIn('modèle(x)', ['mod', 'modèle']), ['modèle']);
});
