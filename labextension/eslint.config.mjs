// The rules of JupyterLab's extension template, on top of typescript-eslint's strict ones. Layout is prettier's.
import eslint from '@eslint/js';
import prettier from 'eslint-config-prettier';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['lib/', '.tests/', 'node_modules/'] },
  eslint.configs.recommended,
  ...tseslint.configs.strict,
  prettier,
  {
    files: ['**/*.ts'],
    languageOptions: { parserOptions: { project: './tsconfig.test.json' } },
    rules: {
      '@typescript-eslint/naming-convention': [
        'error',
        { selector: 'interface', format: ['PascalCase'], custom: { regex: '^I[A-Z]', match: true } }
      ],
      '@typescript-eslint/no-floating-promises': [
        'error',
        { allowForKnownSafeCalls: [{ from: 'package', package: 'node:test', name: ['test', 'describe'] }] }
      ],
      '@typescript-eslint/no-unused-vars': ['error', { args: 'none' }],
      '@typescript-eslint/no-namespace': 'off',
      // what the report holds is text: it never becomes markup, a link's target or code
      'no-restricted-properties': [
        'error',
        ...['innerHTML', 'outerHTML', 'insertAdjacentHTML', 'href', 'srcdoc'].map(property => ({
          property,
          message: 'A report is untrusted: set textContent.'
        }))
      ],
      curly: ['error', 'all'],
      eqeqeq: 'error',
      'no-eval': 'error',
      'prefer-arrow-callback': 'error'
    }
  },
  {
    files: ['**/*.mjs', '**/*.cjs'],
    languageOptions: { globals: { console: 'readonly', process: 'readonly', URL: 'readonly' } }
  }
);
