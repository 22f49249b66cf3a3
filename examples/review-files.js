// Reviews source files and checks every finding with three sceptics before it is believed.
//
//   workflow run examples/review-files.js --args '{"files": ["protocol/errors.py"]}'          # a rehearsal: costs nothing
//   workflow run examples/review-files.js --args '{"files": ["protocol/errors.py"]}' \
//     --agent python:examples.agents.static_reviewer:answer                                    # a real review, without a model
//   workflow run examples/review-files.js --args '{"files": ["protocol/errors.py"]}' \
//     --agent 'command:sh examples/agents/with-schema.sh claude -p'                            # a real review, by a model
//
// Shape: a parallel inside a pipeline. No file waits for another: its findings are being verified while the next file is
// still being read.

export const meta = {
  name: 'review-files',
  description: 'Review files, then verify each finding from several angles and keep what survives',
  phases: [
    { title: 'Review', detail: 'one agent per file' },
    { title: 'Verify', detail: 'three sceptics per finding' },
  ],
}

const FINDINGS = {
  type: 'object',
  properties: {
    findings: {
      type: 'array',
      maxItems: 10,
      items: {
        type: 'object',
        properties: {
          line: { type: 'integer', minimum: 1, description: 'where it is' },
          severity: { enum: ['high', 'medium', 'low'] },
          claim: { type: 'string', minLength: 1, description: 'what is wrong, in one sentence' },
        },
        required: ['line', 'severity', 'claim'],
        additionalProperties: false,
      },
    },
  },
  required: ['findings'],
}
const VERDICT = {
  type: 'object',
  properties: { real: { type: 'boolean' }, why: { type: 'string' } },
  required: ['real', 'why'],
}
const ANGLES = ['is the claim true of the code as it stands', 'does it matter to a user', 'is it handled elsewhere already']

if (!args?.files?.length) return { confirmed: [], note: 'nothing to do: args.files is empty' }

const reviewed = await pipeline(
  args.files,
  (file) =>
    agent(`Review ${file}. Report defects only, each with its line. Report nothing you are not sure of.`, {
      label: `review ${file}`,
      phase: 'Review',
      schema: FINDINGS,
    }),
  async (review, file) => {
    if (review === null) throw new Error(`${file} was not reviewed`)
    const checked = await parallel(
      review.findings.map((finding) => async () => {
        const verdicts = await parallel(
          ANGLES.map((angle) => () =>
            agent(
              `Someone claims about ${file}, line ${finding.line}: ${finding.claim}\n` +
                `Try to refute it. Your angle: ${angle}. When in doubt, it is not real.`,
              { label: `verify ${file}:${finding.line}`, phase: 'Verify', schema: VERDICT },
            ),
          ),
        )
        const votes = verdicts.filter(Boolean)
        return { file, ...finding, votes: votes.filter((verdict) => verdict.real).length, of: votes.length }
      }),
    )
    return checked.filter(Boolean)
  },
)

const all = reviewed.filter(Boolean).flat()
const confirmed = all.filter((finding) => finding.of > 0 && finding.votes * 2 > finding.of)
log(`${confirmed.length} of ${all.length} findings survived`)
const rank = { high: 0, medium: 1, low: 2 }
return {
  confirmed: confirmed.sort((a, b) => rank[a.severity] - rank[b.severity]),
  refuted: all.length - confirmed.length,
  notReviewed: args.files.filter((_, index) => reviewed[index] === null),
}
