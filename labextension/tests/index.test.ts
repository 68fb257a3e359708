import assert from 'node:assert/strict';
import { test } from 'node:test';

import plugins from '../src/index';

test('each plugin can be disabled alone', () => {
  // GIVEN the extension WHEN it is loaded THEN each plugin has an id of its own that names the package
  const ids = plugins.map(plugin => plugin.id);
  assert.ok(ids.length >= 2);
  assert.equal(new Set(ids).size, ids.length);
  for (const plugin of plugins) {
    assert.match(plugin.id, /^nbcompile:[a-z]+$/);
    assert.ok(plugin.description, `${plugin.id} says what it does`);
    assert.equal(plugin.autoStart, true);
  }
});
