/**
 * A dialog that asks which model is meant, and which function runs it.
 */
import { Dialog, showDialog } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';

import { html } from './dom';

export interface IQuestion {
  title: string;
  /** Why it is asked. */
  why: string;
  models: readonly string[];
  model: string;
  /** Functions to choose from; null if no step is asked for. */
  steps: readonly string[] | null;
  step: string;
  stepNeeded: boolean;
}

export interface INamed {
  model: string;
  step: string;
}

/** Ask; null if the user would rather not. */
export async function askNames(question: IQuestion): Promise<INamed | null> {
  const form = new NamesForm(question);
  const answer = await showDialog({
    title: question.title,
    body: form,
    focusNodeSelector: 'input',
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: 'Insert' })]
  });
  return answer.button.accept ? answer.value : null;
}

let forms = 0;

class NamesForm extends Widget implements Dialog.IBodyWidget<INamed> {
  private readonly model: HTMLInputElement;
  private readonly step: HTMLInputElement | null;

  constructor(question: IQuestion) {
    super();
    forms += 1;
    this.addClass('nbcompile-Names');
    this.node.append(html('p', {}, question.why));
    this.model = this.field('Model', question.models, question.model, 'model');
    this.step =
      question.steps === null
        ? null
        : this.field(
            question.stepNeeded ? 'Step: a function that runs the model once' : 'Step (may be left out)',
            question.steps,
            question.step,
            'lambda: model(x)'
          );
  }

  getValue(): INamed {
    return { model: oneLine(this.model.value), step: oneLine(this.step?.value ?? '') };
  }

  private field(label: string, known: readonly string[], value: string, example: string): HTMLInputElement {
    const input = html('input', { class: 'jp-mod-styled', type: 'text', placeholder: example, spellcheck: 'false' });
    input.value = value;
    const row = html('label', {}, html('span', {}, label), input);
    if (known.length > 0) {
      const id = `nbcompile-names-${forms}-${this.node.childElementCount}`;
      input.setAttribute('list', id);
      row.append(html('datalist', { id }, ...known.map(name => html('option', { value: name }))));
    }
    this.node.append(row);
    return input;
  }
}

function oneLine(text: string): string {
  return text.replace(/\s+/g, ' ').trim();
}
