// A chat with the unmodified OpenAI Node SDK; prints one JSON document for the test to read.
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 }); // OPENAI_BASE_URL and OPENAI_API_KEY
const request = {
  model: process.argv[2],
  messages: [{ role: "user", content: "Hello! Tell me about the sea." }],
  max_tokens: 40,
  seed: 7,
};

const whole = await client.chat.completions.create(request);
const stream = await client.chat.completions.create({
  ...request,
  stream: true,
  stream_options: { include_usage: true },
});
let text = "";
let usage = null;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}

let refusal = null;
try {
  await client.chat.completions.create({ ...request, model: "gpt-none" });
} catch (error) {
  refusal = { status: error.status, code: error.code, param: error.param };
}

// Leaving the loop aborts the request.
const left = await client.chat.completions.create({ ...request, max_tokens: 500, stream: true });
for await (const chunk of left) break;

const models = [];
for await (const model of client.models.list()) models.push(model.id);

console.log(JSON.stringify({ whole, text, usage, refusal, models }));
