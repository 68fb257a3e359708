// Runs the unit tests: bundles each with what it imports, as JupyterLab's packages are modules for bundlers and not for
// Node, and hands them to Node's own test runner. `jlpm test report` runs those whose name contains "report".
import { spawnSync } from 'node:child_process';
import { readdirSync, rmSync } from 'node:fs';
import { build } from 'esbuild';

process.chdir(new URL('..', import.meta.url).pathname);
const wanted = process.argv.slice(2);
const names = readdirSync('tests')
  .filter(name => name.endsWith('.test.ts'))
  .filter(name => wanted.length === 0 || wanted.some(word => name.includes(word)));
if (names.length === 0) {
  console.error(`no test file whose name contains ${wanted.join(' or ')} in labextension/tests`);
  process.exit(1);
}
rmSync('.tests', { recursive: true, force: true });
await build({
  entryPoints: names.map(name => `tests/${name}`),
  outdir: '.tests',
  outExtension: { '.js': '.cjs' },
  bundle: true,
  platform: 'node',
  format: 'cjs',
  sourcemap: 'inline',
  mainFields: ['module', 'main'],
  external: ['jsdom'],
  loader: { '.css': 'empty', '.svg': 'text', '.png': 'empty', '.woff': 'empty', '.woff2': 'empty', '.ttf': 'empty' },
  logLevel: 'warning'
});
const files = names.map(name => `.tests/${name.replace(/\.ts$/, '.cjs')}`);
const node = ['--enable-source-maps', '--test-reporter', 'spec', '--import', './tests/page.mjs', '--test', ...files];
process.exit(spawnSync(process.execPath, node, { stdio: 'inherit' }).status ?? 1);
