/**
 * One model in the side bar: what it is, what would be or is compiled of it, and the controls for that.
 */
import { button, setText } from './controls';
import { html } from './dom';
import type { IModel, IOffer, Setting } from './protocol';
import { count, middle, plural, shortCount } from './units';
import { compiledLine } from './states';

/** What a card's buttons ask for. */
export interface IModelActions {
  compile: (name: string, settings: Record<string, string>) => void;
  restore: (name: string) => void;
}

const LONGEST_PATH = 44;

/** The pickers: under which word the kernel takes a setting, which offers it has, and what it is called. */
const PICKERS: readonly (readonly [string, Setting, string])[] = [
  ['strategy', 'strategies', 'Strategy'],
  ['backend', 'backends', 'Backend'],
  ['mode', 'modes', 'Mode']
];

export class ModelCard {
  readonly node = html('section', { class: 'nbcompile-model' });

  constructor(
    private readonly name: string,
    actions: IModelActions
  ) {
    const heading = html('h3', {}, this.title);
    this.node.setAttribute('aria-label', `model ${name}`);
    this.compile = button('Compile', () => actions.compile(name, this.chosen()), 'jp-mod-accept');
    this.restore = button('Restore', () => actions.restore(name));
    this.node.append(
      heading,
      this.state,
      this.plan,
      this.settings,
      html('div', { class: 'nbcompile-row' }, this.compile, this.restore)
    );
  }

  /** Show the model as it is now; what the user has chosen stays chosen. */
  show(model: IModel, disabled: boolean): void {
    const text = JSON.stringify(model);
    if (text !== this.shown) {
      this.shown = text;
      this.model = model;
      const size = model.parameters === null ? '' : `, ${sizeOf(model.parameters)}`;
      this.title.replaceChildren(
        html('strong', {}, this.name),
        ` ${model.className}${size}${model.device && model.device !== 'cpu' ? `, ${model.device}` : ''}`
      );
      setText(
        this.state,
        model.compiled === null ? 'Runs eager: not compiled.' : `Compiled: ${compiledLine(model.compiled)}.`
      );
      this.showPlan(model);
      this.showPickers(model);
    }
    this.restore.disabled = disabled || model.compiled === null;
    this.compile.disabled = disabled || model.offers.strategies.every(offer => offer.reason);
    this.refresh();
  }

  private showPlan(model: IModel): void {
    const summary = html('summary');
    const list = html('ul');
    for (const group of model.groups) {
      list.append(
        html('li', {}, `${middle(group.path || '(model)', LONGEST_PATH)}: ${count(group.count)} × ${group.className}`)
      );
    }
    for (const part of model.rest) {
      const line = html(
        'li',
        { class: 'nbcompile-faint' },
        `${middle(part.path || '(model)', LONGEST_PATH)}: ${part.decision}, ${part.reason}`
      );
      list.append(line);
    }
    if (model.groups.length === 0) {
      setText(summary, 'Plan: nothing repeats');
      list.append(html('li', { class: 'nbcompile-faint' }, model.reason));
    } else {
      const blocks = model.groups.reduce((sum, group) => sum + (group.count ?? 0), 0);
      setText(summary, `Plan: ${plural(blocks, 'block')} in ${plural(model.groups.length, 'group')}`);
    }
    this.plan.replaceChildren(summary, list);
  }

  private showPickers(model: IModel): void {
    for (const [word, setting, title] of PICKERS) {
      let picker = this.pickers.get(word);
      if (picker === undefined) {
        picker = html('select');
        picker.addEventListener('change', () => {
          this.touched.add(word);
          this.refresh();
        });
        this.pickers.set(word, picker);
        this.settings.append(html('label', {}, html('span', {}, title), picker));
      }
      const before = picker.value;
      picker.replaceChildren(...model.offers[setting].map(option));
      const wanted = this.touched.has(word)
        ? before
        : (model.compiled?.[word as 'strategy' | 'backend' | 'mode'] ?? before);
      const offer = model.offers[setting].find(each => each.value === wanted && !each.reason);
      picker.value = offer?.value ?? model.offers[setting].find(each => !each.reason)?.value ?? '';
    }
  }

  /** A backend without modes takes none. */
  private refresh(): void {
    const backend = this.pickers.get('backend');
    const mode = this.pickers.get('mode');
    if (backend === undefined || mode === undefined) {
      return;
    }
    const offer = this.model?.offers.backends.find(each => each.value === backend.value);
    mode.disabled = offer?.modes !== true;
    mode.title = mode.disabled ? `The backend ${backend.value} has no modes.` : '';
  }

  private chosen(): Record<string, string> {
    const settings: Record<string, string> = {};
    for (const [word, picker] of this.pickers) {
      if (picker.value && !picker.disabled) {
        settings[word] = picker.value;
      }
    }
    return settings;
  }

  private readonly title = html('span');
  private readonly state = html('p', { class: 'nbcompile-state' });
  private readonly plan = html('details', { class: 'nbcompile-plan' });
  private readonly settings = html('div', { class: 'nbcompile-settings' });
  private readonly pickers = new Map<string, HTMLSelectElement>();
  private readonly touched = new Set<string>();
  private readonly compile: HTMLButtonElement;
  private readonly restore: HTMLButtonElement;
  private model: IModel | null = null;
  private shown = '';
}

function sizeOf(parameters: number): string {
  return parameters < 1000 ? plural(parameters, 'parameter') : `${shortCount(parameters)} parameters`;
}

function option(offer: IOffer): HTMLOptionElement {
  const made = html('option', {}, offer.reason ? `${offer.label} (not here: ${offer.reason})` : offer.label);
  made.value = offer.value;
  made.disabled = offer.reason !== '';
  made.title = offer.reason;
  return made;
}
